"""When the owner wants this machine for something else: hours, programs, GPU, keyboard, battery, line."""
