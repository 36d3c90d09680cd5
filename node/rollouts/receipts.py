"""The stored Receipts of a node, listed and verified offline."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.errors import BadConfig
from node.home import joined, run_folder
from node.rollouts.outbox import LOST, Outbox, OutboxRow
from node.trust import pay_witness
from node.trust.ledger_store import LedgerStore
from node.trust.ledger_witness import (
    EndedProof,
    ReceiptProof,
    check_end,
    check_receipt,
    check_weight,
    opened,
    opened_costs,
)
from node.trust.market_store import FILE, MarketStore
from node.trust.proof_watch import PERIOD, PERIODS
from node.trust.trust_store import TrustStore
from p2p.envelope import decode_unverified
from p2p.errors import P2PError
from p2p.identity import load_key, peer_id, public_bytes
from p2p.wire_types import decode
from protocol.authority import Root, open_kept
from protocol.group_weights import Costs
from protocol.leases import Receipt
from protocol.ledger_heads import LedgerHead, names
from protocol.market import MarketResponse
from runtime.figures import figure
from runtime.units import unix_milliseconds

_PROOFS: Final = {0: "none", 1: "yes", LOST: "lost"}


def listed(home: Path, most: int) -> list[dict[str, Any]]:
    """List the newest `most` submissions, newest first: lease, state, times (ms), code, reason, and whether the receipt
    is proved to be in the ledger; its entry, weight (milli-RE), epoch and price, as far as it has them. Raises
    `BadConfig`."""
    return [_plain(row) for row in _rows(home, most)]


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the rows of `listed` for people, under headings. Times are UTC."""
    table = [("made", "answer", "after", "proof", "lease", "reason")]
    for row in rows:
        made_at = datetime.fromtimestamp(row["made"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        after = "" if row["decided"] is None else f"{figure((row['decided'] - row['made']) / 1000)} s"
        table.append((made_at, row["state"], after, row["proof"], row["lease"], row["reason"] or ""))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]


class VerifiedReceipts(NamedTuple):
    """`good`: valid Receipts. `proved`: those that are proved to be in the ledger, under one of `heads` signed heads.
    `weighed`: those whose weight follows from the lengths in their entry. `faults`: a sentence per invalid Receipt,
    head or proof. `overdue`: Receipts that name an entry and have no proof though two heads were due since
    (node/trust/proof_watch.py). `epochs`: those whose pay follows (node/trust/pay_witness.py)."""

    good: int
    proved: int
    heads: int
    faults: list[str]
    weighed: int = 0
    overdue: int = 0
    epochs: int = 0

    def sentence(self) -> str:
        """Return the sums in words."""
        sums = (
            f"{self.good} receipts hold, {len(self.faults)} do not; {self.proved} are proved to be in the ledger, by "
            f"{self.heads} signed heads, and the weights of {self.weighed} follow from their lengths"
        )
        if self.epochs:
            sums += f", and the pay of {self.epochs} epochs from price and work"
        if not self.overdue:
            return sums
        return (
            f"{sums}; {self.overdue} have no proof though two heads were due since: run `echo2-node receipts fetch` "
            "while the node works, and ask the run's operator if that brings none"
        )


def verified(home: Path, passphrase: str | None) -> VerifiedReceipts:
    """Verify the stored Receipts, offline. A Receipt is valid if it is for this node and the chain of Roots from the
    invite confirms the signature of the ledger's key (protocol/authority.py). Its proof, where it has one by now, must
    lead to a stored head, and its weight must follow from the lengths in the entry (node/trust/ledger_witness.py).
    `passphrase`: of the node's key. Raises `BadConfig`, and `LocalFault` if that key cannot be read."""
    invite = joined(home)
    node = public_bytes(load_key(home / "node.key", passphrase))
    now = unix_milliseconds()
    chain = TrustStore(_folder(home) / "trust", invite.run, invite.root_hash, now).trusted.chain
    good, proved, weighed, overdue = 0, 0, 0, 0
    by_epoch: dict[int, list[Receipt]] = {}
    heads, proofs, ends, costs, faults = _witnessed(_folder(home), chain, invite.run)
    for row in _rows(home, -1):
        if row.receipt is None:
            continue
        try:
            receipt = decode(open_kept(row.receipt, "receipt", chain, stored=row.root_serial), Receipt)
            if (receipt.node, receipt.lease, receipt.run) != (node, row.lease, invite.run):
                raise P2PError("the Receipt is for another node, lease or run")
            if row.lease in proofs:
                check_receipt(receipt, proofs[row.lease], heads.get)
                proved += 1
                weighed += check_weight(proofs[row.lease], costs.get)
            elif row.lease in ends:
                check_end(receipt, ends[row.lease], heads.get)
                proved += 1
            elif row.proved == LOST:
                raise P2PError(f"the ledger has another entry {receipt.entry}: it was restored or rewritten")
            elif receipt.entry and (row.decided or now) < now - PERIODS * PERIOD:
                overdue += 1
            good += 1
            if receipt.epoch is not None and row.state == "accepted":
                by_epoch.setdefault(receipt.epoch, []).append(receipt)
        except P2PError as error:
            faults.append(f"{row.lease.hex()}: {error}")
    paid = epochs_of(_folder(home), peer_id(node), heads.get)
    for one, promised in paid.epochs:
        paid.faults.extend(pay_witness.faults(one, by_epoch.get(one.epoch, []), promised))
    return VerifiedReceipts(good, proved, len(heads), [*faults, *paid.faults], weighed, overdue, len(paid.epochs))


class PaidEpochs(NamedTuple):
    """The closed epochs of a node, oldest first, each with what the run had promised for it, and a sentence per epoch
    whose proof does not hold."""

    epochs: list[tuple[pay_witness.OwnEpoch, MarketResponse | None]]
    faults: list[str]


def epochs_of(folder: Path, node: str, root_of: Callable[[int], bytes | None]) -> PaidEpochs:
    """Return the epochs of which the folder of a run has the proofs. `node`: peer id. `root_of`: size of a head that
    was taken -> its root."""
    paid = PaidEpochs([], [])
    with contextlib.closing(LedgerStore(folder / "ledger.sqlite")) as store:
        proofs = store.epochs()
    promises: dict[int, MarketResponse | None] = {}
    if proofs and (folder / FILE).exists():
        with contextlib.closing(MarketStore(folder / FILE)) as market:
            promises = {epoch: market.of_epoch(epoch) for epoch in proofs}
    for epoch, (closed, announced) in sorted(proofs.items()):
        try:
            paid.epochs.append((pay_witness.own_epoch(epoch, closed, announced, node, root_of), promises.get(epoch)))
        except P2PError as error:
            paid.faults.append(f"epoch {epoch}: {error}")
    return paid


def _witnessed(
    folder: Path, chain: Sequence[Root], run: bytes
) -> tuple[dict[int, bytes], Mapping[bytes, ReceiptProof], Mapping[bytes, EndedProof], dict[int, Costs], list[str]]:
    """Return the roots of the stored heads by size, the proofs by lease, those of leases that ended without an entry,
    the Costs by the numbers of their entries, and faults: of heads, of Costs, and a fork."""
    roots: dict[int, bytes] = {}
    costs: dict[int, Costs] = {}
    faults = []
    with contextlib.closing(LedgerStore(folder / "ledger.sqlite")) as store:
        later: LedgerHead | None = None
        for sealed, serial in reversed(store.heads()):
            try:
                later = opened(sealed, chain, run, serial, named=later is not None and names(later, sealed)).head
                roots[later.size] = later.root
            except P2PError as error:
                faults.append(f"a LedgerHead: {error}")
        if (fork := store.fork()) is not None:
            faults.append(fork)
        for proved, serial in store.costs():
            try:
                costs[proved.proof.entry] = opened_costs(proved, roots.get, chain, serial)
            except P2PError as error:
                faults.append(f"the Costs of entry {proved.proof.entry}: {error}")
        return roots, store.proofs(), store.ends(), costs, faults


def _rows(home: Path, most: int) -> list[OutboxRow]:
    with _outbox(home) as outbox:
        return outbox.rows(most)


@contextlib.contextmanager
def _outbox(home: Path) -> Iterator[Outbox]:
    path = _folder(home) / "outbox.sqlite"
    if not path.exists():
        raise BadConfig(f"no receipts in {home}: no work was done there yet")
    try:
        outbox = Outbox(path, node=bytes(32), limit=1)
    except sqlite3.Error as error:
        raise BadConfig(f"{path}: {error}") from error
    with contextlib.closing(outbox):
        yield outbox


def _folder(home: Path) -> Path:
    return run_folder(home, joined(home).run)


def _plain(row: OutboxRow) -> dict[str, Any]:
    receipt = None if row.receipt is None else decode(decode_unverified(row.receipt).payload, Receipt)
    return {
        "lease": row.lease.hex(),
        "state": row.state,
        "made": row.made_at,
        "decided": row.decided,
        "code": row.code,
        "reason": row.reason,
        "proof": "" if row.receipt is None else _PROOFS[row.proved],
        "entry": receipt and receipt.entry,
        "weight": receipt and receipt.weight,
        "epoch": receipt and receipt.epoch,
        "price": receipt and receipt.price,
    }
