"""The run folder: its files, its keys and signed documents, and the commands that make and renew them."""
