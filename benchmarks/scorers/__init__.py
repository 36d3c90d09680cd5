"""Measure several scorers of one coordinator, and what the host does for a token: `python -m benchmarks.scorers`."""
