"""Scripts for the Python that has verifiers: they import it and nothing of ours."""
