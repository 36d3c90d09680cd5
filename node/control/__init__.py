"""Control of a node by its owner: the control socket, its commands, and the diagnosis `doctor`."""
