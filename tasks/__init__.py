"""Environments: a prompt from a seed, the episode, the score. Pure, deterministic, without I/O."""
