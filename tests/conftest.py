"""Every test draws the same examples in every run: a failure can be repeated as it was."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")
