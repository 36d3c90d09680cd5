"""`echo2-coord demo`: a whole run on this machine in a few minutes."""
