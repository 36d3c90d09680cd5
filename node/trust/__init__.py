"""Trust in the run's documents: verify Roots, Heads and RunSpecs, and keep them on disk."""
