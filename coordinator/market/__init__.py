"""The market of a run that pays money: measured cost, sealed asks, activation, prices, epochs and holdbacks. Pure."""
