"""From a request (plan.toml) to a plan: the cases that a measurement times."""
