"""What nodes ask and hand in: their requests, their groups, the turns of an episode."""
