"""The run folder: how it is made."""
