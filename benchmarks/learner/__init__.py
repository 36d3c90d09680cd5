"""The learner's step beside TRL's: `python -m benchmarks.learner [--quick]`."""
