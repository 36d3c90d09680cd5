"""What runs in the Python that has verifiers: scripts that import it and nothing of ours."""
