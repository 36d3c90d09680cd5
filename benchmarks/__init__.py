"""The claims, measured: one module a claim, each against its anchor in the same run."""
