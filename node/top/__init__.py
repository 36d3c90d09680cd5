"""`echo2-node top`: a running node on one screen of a terminal."""
