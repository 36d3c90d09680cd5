"""Environments: a prompt from an index, the episode, the score. Pure, deterministic, without I/O."""
