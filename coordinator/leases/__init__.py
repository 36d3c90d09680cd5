"""The right to one group: who gets it, how many are out, and when it ends."""
