"""Owners of several nodes, as far as the coordinator can tell, as tags that say nothing about anybody.

Rules
1. Nodes have one owner if they share a payout account, or the address evidence of their requests: the party
   (p2p/limits/origin.py). That is a heuristic: one owner with several accounts and addresses counts as several.
2. A tag is HMAC-SHA-256 under a key of 32 random bytes that is forgotten with the call. So tags of two epochs cannot be
   linked, nobody can test an address against one, and a replay needs none.
3. Nodes alone are not named. Of keys without accepted work at most `MOST_FREE` are: they are free, and what is named is
   an entry of each epoch. Beyond those the cap of an owner does not hold; such keys get the newcomers' share at most,
   or all where no node is measured.
"""

import hashlib
import hmac
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final

from echo2.coordinator.epochs.presence import Kind

TAG: Final = 16
"""Bytes of a tag."""
MOST_FREE: Final = 256


def nameable(nodes: Collection[str], kind: Callable[[str], Kind]) -> list[str]:
    """Return the nodes that may be named (rule 3), in order: those with an ask before those without."""
    free = sorted((node for node in nodes if kind(node) != Kind.WORKER), key=lambda node: (-kind(node), node))
    return sorted([*(node for node in nodes if kind(node) == Kind.WORKER), *free[:MOST_FREE]])


def group_by_owner(
    nodes: Collection[str], accounts: Mapping[str, str], parties: Mapping[str, str], key: bytes
) -> dict[str, bytes]:
    """Return node -> tag of the nodes whose owner has several. `accounts`, `parties`: accounts and parties of nodes;
    missing or empty: not known. `key`: rule 2."""
    first = {node: node for node in nodes}

    def root(node: str) -> str:
        while first[node] != node:
            first[node] = first[first[node]]
            node = first[node]
        return node

    for evidence in (accounts, parties):
        by_value: dict[str, str] = {}
        for node in sorted(nodes):
            value = evidence.get(node, "")
            if value:
                first[root(node)] = root(by_value.setdefault(value, node))
    members = defaultdict(list)
    for node in sorted(nodes):
        members[root(node)].append(node)
    return {
        node: hmac.new(key, owner.encode(), hashlib.sha256).digest()[:TAG]
        for owner, of_owner in members.items()
        if len(of_owner) > 1
        for node in of_owner
    }
