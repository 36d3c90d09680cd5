"""Measure a coordinator under load and after a long run: `python -m benchmarks.load`."""
