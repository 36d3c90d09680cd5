"""A learner of several processes: who holds which part, and who is told what."""
