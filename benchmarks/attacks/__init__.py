"""Attacks on a coordinator of this machine, for operators before they open a run: `echo2-coord redteam`."""
