"""Requests of nodes, the groups that they hand in, and the turns of an episode."""
