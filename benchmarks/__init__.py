"""Measure the project's claims: one module per claim, each against its anchor in the same run."""
