"""Measure evidence against nodes: how seldom an honest engine is refused, and how soon another policy is named."""
