"""How small and how fast is the diff between two policy versions?"""
