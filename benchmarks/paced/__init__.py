"""A run of real processes in which steps and groups take times that are given, not computed."""
