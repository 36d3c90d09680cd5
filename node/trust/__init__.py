"""Trust in the run's documents: verify them, keep them on disk, and estimate the clock by which they expire."""
