"""Prediction against measurement: accuracy, tables and pages."""
