"""The devices of a machine, what they can compute, and what a user can do where they cannot."""
