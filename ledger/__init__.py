"""The ledger of a run, as anybody reads it: entries, tree, heads, standing, and the replay of all pay. Pure."""
