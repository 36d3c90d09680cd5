"""The market as a coordinator runs it: the clock of its epochs, the asks of nodes, and who may get a lease."""
