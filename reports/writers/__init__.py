"""Findings in the formats that programs and other pages read: JSON, CSV, Markdown, JUnit XML."""
