"""What a card can do for echo2, measured in two minutes: the command `gpu-check` of both programs."""
