"""The kinds of lease beside the plain one: begun elsewhere, audit, canary."""
