"""Learning curves of SmolLM2-135M through real nodes: `python -m benchmarks.curves run|draw`."""
