"""Scorers on other hosts, as actors of Ray: their driver, the actors, and the coordinator's side of both."""
