"""The owner's side: control socket, commands, doctor."""
