"""Runs whose versions are a low-rank adapter (LoRA) over a frozen base."""
