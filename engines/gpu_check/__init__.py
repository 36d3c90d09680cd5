"""The speed and memory of a card for echo2, in two minutes: the command `gpu-check` of both programs."""
