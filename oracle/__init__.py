"""Parameters + model + strategy -> time, memory and limits, before anyone has the machine."""
