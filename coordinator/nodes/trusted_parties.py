"""List the nodes whose work was accepted last, and their parties: shares of connections, relay reservations and peer
lists are kept for them (p2p/limits/party.py, node_registry.py).

Rules
1. Of the nodes of the last `LOOKED_AT` accepted groups those that are proven count, all of them as long as none is.
2. The cost does not grow with history. To crowd out a node, others must bring that many groups.
3. The party of such a node is its subnet. At a private address and behind a relay it is its key, under its peer id:
   what strangers share with it there has no accepted work.
4. A request is of a worker if its key has accepted work, or if its party is in that list: over HTTPS no key is known.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from echo2.coordinator.accounts.key_accounts import account_of
from echo2.coordinator.database.database import Database
from echo2.ledger.standing import rank
from echo2.p2p.errors import Malformed
from echo2.p2p.identity import peer_id, public_key
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.party import Parties, is_subnet

LEAST_HIDDEN: Final = 8
"""Fewest connections since the start from which the sentence on hidden strangers follows."""
LOOKED_AT: Final = 1_000
"""The number of last accepted groups that are read."""


class TrustedNode(NamedTuple):
    """A node by its key, 32 bytes, and the party of a lease of it; empty: not known."""

    node: bytes
    party: str


def trusted_nodes(database: Database, looked_at: int = LOOKED_AT) -> list[TrustedNode]:
    """Return the nodes of the last accepted groups by rule 1, with each party that they had, once each."""
    rows = database.all(
        "SELECT DISTINCT l.node, l.party"
        " FROM (SELECT lease FROM verdicts WHERE verdict = 'accepted' ORDER BY entry DESC LIMIT ?) v"
        " JOIN leases l ON l.id = v.lease ORDER BY l.party, l.node",
        (looked_at,),
    )
    ranks = {node: rank(account_of(database, node)) for node, _ in rows}
    proven = [row for row in rows if ranks[row[0]] == "proven"]
    return [TrustedNode(*row) for row in proven or rows]


def parties_of(nodes: Iterable[TrustedNode]) -> list[str]:
    """Return the parties of nodes, each once (rule 3)."""
    return sorted({one.party if is_subnet(one.party) else peer_id(one.node) for one in nodes if one.party})


def describe_hidden(parties: Parties) -> str:
    """Return a sentence if everybody seems to be at a private address of a run that has public ones; "" if not."""
    private, public = parties.accepted[False], parties.accepted[True]
    if public or private < LEAST_HIDDEN or not parties.private_is_one:
        return ""
    return (
        f"all {private} connections came from private addresses: if a proxy hides strangers there, newcomers share one "
        "set of limits, and may wait; let it send PROXY headers and name it in network.trusted_proxies, or in a LAN "
        'set network.private_parties="connection"'
    )


def works(database: Database, origin: Origin, parties: Collection[str]) -> bool:
    """Tell whether a request is of a worker (rule 4). `parties`: parties of `trusted_nodes`."""
    if origin.party in parties:
        return True
    try:
        return account_of(database, public_key(origin.connection)).accepted > 0
    except Malformed:
        return False
