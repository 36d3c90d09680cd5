"""The nodes that a run knows: names, addresses, teams, and what the operator says of them."""
