"""Measure the harm that attackers without accepted work can do to a run: `python -m benchmarks.flood`."""
