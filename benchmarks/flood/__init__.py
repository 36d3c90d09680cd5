"""Measure what strangers without work can do to a run: `python -m benchmarks.flood`."""
