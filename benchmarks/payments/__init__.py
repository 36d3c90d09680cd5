"""The payments of `echo2-coord demo --pay`: a provider that fails at times, and the commands that pay over it."""
