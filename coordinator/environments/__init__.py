"""Environments: the operator's tasks, run in child processes with limits."""
