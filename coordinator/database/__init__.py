"""The tables of run.sqlite, and the one transaction in which they change."""
