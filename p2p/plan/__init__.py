"""Broadcast plans: assign each peer its parents, and repair the plan as peers come and go."""
