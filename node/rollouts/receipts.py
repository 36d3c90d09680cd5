"""The stored Receipts of a node, listed and verified offline."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from echo2.node.errors import BadConfig
from echo2.node.home import invite_for_reading, run_folder
from echo2.node.rollouts.outbox import CLAIM_RECEIPT, LOST_RECEIPT, Outbox, OutboxRow
from echo2.node.trust import pay_witness
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.ledger_witness import (
    EndedProof,
    ReceiptProof,
    check_end,
    check_lengths,
    check_receipt,
    check_weight,
    open_head,
    opened_costs,
)
from echo2.node.trust.market_store import FILE, MarketStore
from echo2.node.trust.proof_watch import DEFAULT_PERIOD_MS, PERIODS
from echo2.node.trust.trust_store import TrustStore
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import load_key, peer_id, public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root, open_kept, open_log
from echo2.protocol.group_weights import Costs, GroupLengths
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import LedgerHead, names
from echo2.protocol.market import MarketResponse
from echo2.protocol.restored_logs import LogChain
from echo2.runtime.figures import figure, number_of
from echo2.runtime.units import unix_milliseconds

_PROOFS: Final = {0: "none", 1: "yes", LOST_RECEIPT: "lost", CLAIM_RECEIPT: "claim"}


def list_submissions(home: Path, most: int) -> list[dict[str, Any]]:
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
    (node/trust/proof_watch.py). `epochs`: those whose pay follows (node/trust/pay_witness.py). `claims`: Receipts of
    entries that were lost as the ledger was restored from a copy; `evident`: those of them that had been proved before,
    under a head that the restored log lacks. A claim is no fault, and is among `good`."""

    good: int
    proved: int
    heads: int
    faults: list[str]
    weighed: int = 0
    overdue: int = 0
    epochs: int = 0
    claims: int = 0
    evident: int = 0

    def sentence(self) -> str:
        """Return the sums in words."""
        sums = (
            f"{number_of(self.good, 'receipt')} right, {len(self.faults)} wrong; {self.proved} proved to be in the "
            f"ledger, by {number_of(self.heads, 'signed head')}, and the weights of {self.weighed} follow from their "
            "lengths"
        )
        if self.epochs:
            sums += f", and the pay of {number_of(self.epochs, 'epoch')} from price and work"
        if self.claims:
            sums += (
                f"; {self.claims} are claims: the run's ledger was restored from a copy that lacks their entries, and "
                f"{self.evident} of them had been proved before; show them to the run's operator"
            )
        if not self.overdue:
            return sums
        return (
            f"{sums}; {self.overdue} have no proof though two heads were due since: run `echo2-node receipts fetch` "
            "while the node works, and ask the run's operator if that brings none"
        )


def verify_receipts(home: Path, passphrase: str | None) -> VerifiedReceipts:
    """Verify the stored Receipts, offline. A Receipt is valid if it is for this node and the chain of Roots from the
    invite confirms the signature of the ledger's key (protocol/authority.py). Its proof, where it has one by now, must
    lead to a stored head, and its weight must follow from the lengths in the entry, which are those of the group that
    this node generated (node/trust/ledger_witness.py). `passphrase`: passphrase of the node's key. Raises `BadConfig`,
    and `LocalFault` if that key cannot be read."""
    invite = invite_for_reading(home)
    node = public_bytes(load_key(home / "node.key", passphrase))
    now = unix_milliseconds()
    chain = TrustStore(_folder(home) / "trust", invite.run, invite.root_hash, now).trusted.chain
    good, proved, weighed, overdue = 0, 0, 0, 0
    claims, evident = 0, 0
    by_epoch: dict[int, list[Receipt]] = {}
    ledger = _read_witnessed(_folder(home), chain, invite.run)
    faults = ledger.faults
    for row in _rows(home, -1):
        if row.receipt is None:
            continue
        try:
            receipt = decode(open_kept(row.receipt, "receipt", chain, stored=row.root_serial), Receipt)
            if (receipt.node, receipt.lease, receipt.run) != (node, row.lease, invite.run):
                raise P2PError("the Receipt is for another node, lease or run")
            if row.proved == CLAIM_RECEIPT:
                claims += 1
                evident += ledger.evident(receipt)
            elif row.lease in ledger.proofs:
                check_receipt(receipt, ledger.proofs[row.lease], ledger.heads.get)
                proved += 1
                weighed += check_weight(ledger.proofs[row.lease], ledger.costs.get)
                if row.lengths is not None:
                    check_lengths(ledger.proofs[row.lease], msgspec.msgpack.decode(row.lengths, type=GroupLengths))
            elif row.lease in ledger.ends:
                check_end(receipt, ledger.ends[row.lease], ledger.heads.get)
                proved += 1
            elif row.proved == LOST_RECEIPT:
                raise P2PError(f"the ledger has another entry {receipt.entry}: it was restored or rewritten")
            elif receipt.entry and (row.decided or now) < now - PERIODS * DEFAULT_PERIOD_MS:
                overdue += 1
            good += 1
            if receipt.epoch is not None and row.state == "accepted" and row.proved != CLAIM_RECEIPT:
                by_epoch.setdefault(receipt.epoch, []).append(receipt)
        except P2PError as error:
            faults.append(f"{row.lease.hex()}: {error}")
    paid = epochs_of(_folder(home), peer_id(node), ledger.heads.get)
    for one, promised in paid.epochs:
        paid.faults.extend(pay_witness.faults(one, by_epoch.get(one.epoch, []), promised))
    return VerifiedReceipts(
        good, proved, len(ledger.heads), [*faults, *paid.faults], weighed, overdue, len(paid.epochs), claims, evident
    )


class PaidEpochs(NamedTuple):
    """The closed epochs of a node, oldest first, each with what the run had promised for it, and a sentence per epoch
    whose proof does not hold."""

    epochs: list[tuple[pay_witness.OwnEpoch, MarketResponse | None]]
    faults: list[str]


def epochs_of(folder: Path, node: str, root_of: Callable[[int], bytes | None]) -> PaidEpochs:
    """Return the epochs of which the folder of a run has the proofs, or what was proved by them. `node`: peer id.
    `root_of`: size of a head that was taken -> its root."""
    paid = PaidEpochs([], [])
    with contextlib.closing(LedgerStore(folder / "ledger.sqlite")) as store:
        proofs, before = store.epochs(), {own.epoch: own for own in store.paid_epochs()}
    promises: dict[int, MarketResponse | None] = {}
    if (proofs or before) and (folder / FILE).exists():
        with contextlib.closing(MarketStore(folder / FILE)) as market:
            promises = {epoch: market.of_epoch(epoch) for epoch in [*before, *proofs]}
    paid.epochs.extend((before[epoch], promises.get(epoch)) for epoch in before)
    for epoch, closed in sorted(proofs.items()):
        try:
            paid.epochs.append((pay_witness.own_epoch(epoch, closed, node, root_of), promises.get(epoch)))
        except P2PError as error:
            paid.faults.append(f"epoch {epoch}: {error}")
    paid.epochs.sort(key=lambda one: one[0].epoch)
    return paid


class _Witnessed(NamedTuple):
    """The stored ledger. `heads`: the roots of heads by size. `former`: those of heads that a restored log lacks.
    `proofs`, `ends`, `claims`: proofs, ends and claims by lease. `costs`: costs by the numbers of their entries.
    `faults`: faults of documents, of heads, of Costs, and a fork."""

    heads: dict[int, bytes]
    former: dict[int, list[bytes]]
    proofs: Mapping[bytes, ReceiptProof]
    ends: Mapping[bytes, EndedProof]
    claims: Mapping[bytes, ReceiptProof | EndedProof]
    costs: dict[int, Costs]
    faults: list[str]

    def evident(self, receipt: Receipt) -> bool:
        """Tell whether a claim was proved before its entry was lost."""
        proved = self.claims.get(receipt.lease)
        if proved is None:
            return False
        size = proved.entry.size if isinstance(proved, EndedProof) else proved.size
        return any(_holds(receipt, proved, {size: root}) for root in self.former.get(size, []))


def _holds(receipt: Receipt, proved: ReceiptProof | EndedProof, roots: dict[int, bytes]) -> bool:
    try:
        if isinstance(proved, EndedProof):
            check_end(receipt, proved, roots.get)
        else:
            check_receipt(receipt, proved, roots.get)
    except P2PError:
        return False
    return True


def _read_witnessed(folder: Path, chain: Sequence[Root], run: bytes) -> _Witnessed:
    roots: dict[int, bytes] = {}
    former: dict[int, list[bytes]] = {}
    costs: dict[int, Costs] = {}
    with contextlib.closing(LedgerStore(folder / "ledger.sqlite")) as store:
        logs, faults = _logs(store, chain, run)
        later: LedgerHead | None = None
        for sealed, serial in reversed(store.heads()):
            try:
                later = open_head(sealed, chain, logs, serial, named=later is not None and names(later, sealed)).head
                roots[later.size] = later.root
            except P2PError as error:
                faults.append(f"a LedgerHead: {error}")
        for sealed, serial in store.former_heads():
            with contextlib.suppress(P2PError):  # one that no longer counts proves nothing, and none relies on it
                head = open_head(sealed, chain, logs, serial).head
                former.setdefault(head.size, []).append(head.root)
        if (fork := store.fork()) is not None:
            faults.append(fork)
        for proved, serial in store.costs():
            try:
                costs[proved.proof.entry] = opened_costs(proved, roots.get, chain, serial)
            except P2PError as error:
                faults.append(f"the Costs of entry {proved.proof.entry}: {error}")
        return _Witnessed(roots, former, store.proofs(), store.ends(), store.claims(), costs, faults)


def _logs(store: LedgerStore, chain: Sequence[Root], run: bytes) -> tuple[LogChain, list[str]]:
    """Return the restored logs that hold, and faults of the others."""
    logs, faults = LogChain(run), list[str]()
    for sealed, serial in store.stored_logs():
        try:
            logs = logs.with_next(open_log(sealed, chain, stored=serial))
        except P2PError as error:
            faults.append(f"the document of a restored log: {error}")
    return logs, faults


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
    return run_folder(home, invite_for_reading(home).run)


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
