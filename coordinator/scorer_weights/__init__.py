"""The weights of scorers: the moves from version to version, and who makes them here or on another host."""
