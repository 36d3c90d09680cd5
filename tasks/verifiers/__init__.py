"""Tasksets of the verifiers library: the bridge to an environment server in a Python of its own."""
