"""How fast do chunks go from one process to another?"""
