"""The learner's state on disk: checkpoints, the journal between them, exports, and the replay of steps."""
