"""Keep a run going when the learner fails: charges against batches, pauses, and words for a wait."""
