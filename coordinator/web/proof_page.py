"""The proof of one lease's entry in the ledger, as a page that a browser checks: `/ledger/proof/LEASE`.

Rules
1. The page is readable without its script: the entry, its place, each digest of the path, and the checkpoint.
2. The script decodes the bytes of the entry, computes its hashes and the root over the path, and compares all of them
   with what is stated. It loads nothing. The signature is checked where the browser offers Ed25519, which it does over
   https and on this machine alone; else the page says that `echo2-node receipts verify` does so.
3. The key is the page's own word: who trusts the page no further compares it with the Root of the run's invite.
"""

from collections.abc import Sequence
from typing import NamedTuple

from echo2.coordinator.accounts.head_signing import entry_proof
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.ledger_search import format_entry
from echo2.coordinator.database.database import Database
from echo2.coordinator.web import page
from echo2.ledger.ledger_entries import chain_hash
from echo2.p2p.swarm import merkle
from echo2.protocol.authority import Root


class PathStep(NamedTuple):
    """A digest of the path, lowest first. `side`: side of the sibling, "left" or "right". `digest`: hexadecimal."""

    side: str
    digest: str


class LeaseProof(NamedTuple):
    """The proof of an entry, bytes in hexadecimal digits. `told`: the entry as JSON. `hash`: hash of the entry in the
    chain, which the Receipt names. `head`, `size`: head and size of the newest signed head. `keys`: keys of the ledger
    in the newest Root."""

    lease: str
    entry: int
    told: str
    canonical: str
    previous: str
    hash: str
    path: list[PathStep]
    head: int
    size: int
    root: str
    note: str
    keys: list[str]


def lease_proof(database: Database, lease: str, chain: Sequence[Root]) -> LeaseProof | None:
    """Return the proof of a lease's own entry; None: there is no such entry, or no head covers it yet. `lease`: 32
    hexadecimal digits. `chain`: the run's Roots."""
    ledger = Ledger(database)
    entry = ledger.find(f"lease:{lease}")
    row = database.one("SELECT number, size, note FROM ledger_heads ORDER BY number DESC LIMIT 1")
    if entry is None or row is None or entry.seq > row[1]:
        return None
    number, size, note = row
    proof = entry_proof(ledger, entry.seq, size)
    assert proof is not None
    sides = ["left" if at < (entry.seq - 1) >> level else "right" for level, at in merkle.siblings(entry.seq - 1, size)]
    return LeaseProof(
        lease=lease,
        entry=entry.seq,
        told=format_entry(entry),
        canonical=proof.canonical.hex(),
        previous=proof.previous.hex(),
        hash=chain_hash(proof.previous, proof.canonical).hex(),
        path=[PathStep(side, digest.hex()) for side, digest in zip(sides, proof.path, strict=True)],
        head=number,
        size=size,
        root=ledger.tree.root(size).hex(),
        note=note,
        keys=[key.hex() for key in chain[-1].roles["ledger"].keys],
    )


def render_page(proof: LeaseProof) -> bytes:
    """Return the page."""
    return page.render("proof.html", proof._asdict(), base="../../").encode()
