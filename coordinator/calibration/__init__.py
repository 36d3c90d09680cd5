"""Measurements of engines and models on this machine, before a run and while it goes on."""
