"""The life of a group: prompt, lease, submission, verification, verdict, replay buffer."""
