"""Tasks of reasoning-gym, by name and mixture (extra `gym`)."""
