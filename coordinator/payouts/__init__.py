"""Paying money out: the plan, its approval, what forbids it, sending, and asking what became of it."""
