"""What a coordinator costs under load, and after a long run: `python -m benchmarks.load`."""
