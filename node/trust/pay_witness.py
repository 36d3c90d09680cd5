"""Check what an epoch paid this node, against its receipts and against what the run promised. Pure.

Amounts in nano units, work in milli-RE, prices in nano units per RE, rounded down in entries and receipts.

Rules
1. The close of an epoch is an entry with a known key (`close_key`), proved as any other entry.
2. A receipt that states a price states the one of the close. The run's own promise for the epoch is kept too.
3. The close counts at least the work of the receipts of that epoch that earn at the verdict: others count when they are
   decided.
4. Pay is price times work, of at most what was promised: it lies between the amounts that follow from the price as it
   is stated and from one unit more. The close's amounts are posted.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.ledger.epoch_facts import ClosedNode
from echo2.node.trust.ledger_witness import NotProved, ProvedEntry, ReceiptProof, proved_entry
from echo2.protocol.leases import Receipt
from echo2.protocol.market import MarketResponse
from echo2.protocol.refusals import AT_VERDICT

MILLI: Final = 1000
"""Milli-RE in a reference rollout."""


class _Close(msgspec.Struct, frozen=True):
    epoch: int
    since: int
    nodes: list[ClosedNode]


class OwnEpoch(NamedTuple):
    """An epoch, as far as it concerns this node. `entry`: number of its close. `since`, `closed`: ms. `row`: None: it
    pays the node nothing. `accrued`, `unvested`: posted to the node."""

    epoch: int
    entry: int
    since: int
    closed: int
    row: ClosedNode | None
    accrued: int
    unvested: int


def close_key(epoch: int) -> str:
    """Return the key of the close of an epoch (rule 1)."""
    return f"epoch:{epoch}:closed"


def own_epoch(epoch: int, closed: ReceiptProof, node: str, root_of: Callable[[int], bytes | None]) -> OwnEpoch:
    """Return an epoch from the proof of its close. `node`: this node's peer id. Raises `NotProved`."""
    entry = proved_entry(closed, root_of)
    close = _close(entry, epoch)
    accrued, unvested = (
        sum(amount for account, amount in entry.postings if account == f"node:{node}:{what}")
        for what in ("accrued", "unvested")
    )
    rows = [row for row in close.nodes if row.node == node]
    if len(rows) > 1:
        raise NotProved(f"entry {entry.seq} states this node {len(rows)} times")
    return OwnEpoch(epoch, entry.seq, close.since, entry.at, rows[0] if rows else None, accrued, unvested)


def _close(entry: ProvedEntry, epoch: int) -> _Close:
    if (entry.kind, entry.key) != ("epoch.closed", close_key(epoch)):
        raise NotProved(f"entry {entry.seq}, a {entry.kind}, is not the entry `epoch.closed` of epoch {epoch}")
    try:
        return msgspec.msgpack.decode(entry.facts, type=_Close)
    except msgspec.MsgspecError as error:
        raise NotProved(f"the facts of entry {entry.seq} do not decode: {error}") from error


def faults(own: OwnEpoch, receipts: Sequence[Receipt], promised: MarketResponse | None) -> list[str]:
    """Return a sentence for each thing that differs (rules 2 to 4). `receipts`: accepted, of this epoch. `promised`:
    the run's answer while the epoch ran; None: this node did not ask then."""
    said = f"epoch {own.epoch} (entry {own.entry})"
    priced = [one for one in receipts if one.price is not None]
    if own.row is None:
        return [f"{said} pays this node nothing, though receipt {one.lease.hex()} states a price" for one in priced]
    row = own.row
    wrong = [
        f"{said} pays {row.price} per RE, and receipt {one.lease.hex()} states {one.price}"
        for one in priced
        if row.price != one.price
    ]
    wrong += [
        f"receipt {one.lease.hex()} is of {said}, which was closed before its entry {one.entry}"
        for one in receipts
        if one.entry > own.entry
    ]
    work = sum(one.weight for one in receipts if one.code in AT_VERDICT)
    if row.work < work:
        wrong.append(f"{said} counts {row.work} milli-RE of this node, and its receipts state {work}")
    if (own.accrued, own.unvested) != (row.pay - row.unvested, row.unvested):
        wrong.append(f"{said} states a pay of {row.pay}, and posts {own.accrued + own.unvested}")
    if promised is not None and promised.price not in (None, row.price):
        wrong.append(f"{said} pays {row.price} per RE, and the run had promised {promised.price}")
    return wrong + _of_pay(said, row, promised)


def _of_pay(said: str, row: ClosedNode, promised: MarketResponse | None) -> list[str]:
    least = 0 if promised is None else row.price * min(row.work, promised.most) // MILLI
    most = (row.price + 1) * row.work // MILLI
    if least <= row.pay <= most:
        return []
    return [
        f"{said} pays {row.pay} for {row.work} milli-RE at {row.price} per RE: from price, work and what was promised "
        f"follows an amount from {least} to {most}"
    ]
