"""What the daemons of a run say to each other: methods, refusals, and the checks of documents that both sides make.

Every rule here is used by a coordinator and by a node, and written once.
"""
