"""The kinds of lease beside the plain one: audit, canary, hedge."""
