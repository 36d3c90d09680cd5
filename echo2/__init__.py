"""Hold the one import name of the distribution; the eight packages stand beside this folder, and here as links."""
