"""The protocol between the daemons of a run: methods, messages, refusals, and the checks of documents on both sides.

Every rule here is used by both the coordinator and the node, and is written once.
"""
