"""The verdict on a group that was handed in, what follows from it, and the buffer of the accepted ones."""
