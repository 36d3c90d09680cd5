"""The prompts of a run: which comes next, and for whom."""
