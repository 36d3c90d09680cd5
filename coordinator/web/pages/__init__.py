"""Pages beside the run's own: the operator's, those of nodes, and a copy of the site for another host."""
