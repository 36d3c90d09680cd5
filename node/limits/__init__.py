"""The caps of line, month and time, and the limits of devices, as they are in force."""
