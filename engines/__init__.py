"""Generating with exact log-probabilities: engine protocol, seeded sampling, and the child process that hosts an
engine."""
