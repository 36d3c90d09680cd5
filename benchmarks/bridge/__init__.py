"""Tasksets of verifiers through the bridge against a local server."""
