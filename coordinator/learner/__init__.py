"""The GRPO learner: its loss, its step, its checkpoints, its export. Runs in a process of its own; holds no key."""
