"""What the node believes: verify Roots, Heads and RunSpecs, and keep them on disk."""
