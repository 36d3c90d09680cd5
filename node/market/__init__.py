"""A node in a run that pays money: its asks, what it earns, and the account that it is paid to."""
