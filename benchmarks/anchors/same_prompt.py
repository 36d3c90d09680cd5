"""The prompt of benchmarks.anchors, the same for all subjects. No package is needed."""

PROMPT = tuple(range(100, 116))
