"""Commands of the node's owner: the control socket, its commands, and the diagnosis `doctor`."""
