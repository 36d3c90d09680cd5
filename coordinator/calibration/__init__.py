"""What engines and models do on this machine, measured before a run and while it goes on."""
