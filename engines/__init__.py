"""Generating with exact log-probabilities: the engine protocol, seeded sampling, and the child process that hosts one."""
