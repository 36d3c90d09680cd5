"""Verify an export of the ledger (ledger_export.py): its chain, tree, heads, signatures and balances. No private keys.

Rules
1. The Roots are a chain, whose first one has the hash that the run's invite pins; the caller compares it.
2. Entries are numbered from 1 without a gap, in canonical bytes, under keys that are used once. Each hash follows from
   the entry and the hash before it.
3. Postings add up to 0, and no account but the fund falls below 0.
4. Heads are numbered from 1, each names the one before it, and the ledger's keys in the Roots signed them; a revoked
   key only where a later head names its head. The first `size` entries have the `root` and the `tip` of each head.
   The documents of restored logs follow each other (protocol/restored_logs.py), and the role root signed them. Each
   head is of the log in which its number and size stand. Each `log.restored` repeats one of them, behind the entries
   that it restored, whose tree has its root; and no head is of a log whose entry is not before it.
5. The beacon of each lottery is that of a head (drawn_beacons.py).
6. The hashes of all files are those of `SHA256SUMS`.
7. The first fault ends the verification: `Tampered` with the number of an entry, or `Untrusted` for a document.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from echo2.ledger.drawn_beacons import DrawnBeacons
from echo2.ledger.export_files import HEADS, PER_FILE, RESTORED_FILE, ROOTS, RUNSPEC, SUMS, entry_files, sums
from echo2.ledger.ledger_entries import (
    FUND,
    ORIGIN,
    Entry,
    LedgerFault,
    Posting,
    Tampered,
    canonical,
    chain_hash,
    check_postings,
    sha256,
)
from echo2.ledger.ledger_facts import LOG_RESTORED, LogBegun, log_key
from echo2.p2p.errors import PeerFault
from echo2.p2p.swarm.merkle_log import GrowingRoot
from echo2.p2p.wire_types import Hash, decode
from echo2.protocol import root_chain
from echo2.protocol.authority import MOST_ROOTS, Root, RunSpec, Unproven, open_kept, open_log
from echo2.protocol.ledger_heads import LedgerHead, names
from echo2.protocol.money_text import amount_text
from echo2.protocol.restored_logs import LogChain
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.printable import printable

MOST_FILE: Final = 1 << 30
"""Bytes of a file of entries, unpacked."""

Row = tuple[bytes, Hash]
_rows = msgspec.msgpack.Decoder(Annotated[list[Row], Meta(max_length=PER_FILE)])
_entry = msgspec.msgpack.Decoder(tuple[int, int, str, str, tuple[Posting, ...], bytes])
_roots = msgspec.msgpack.Decoder(Annotated[list[bytes], Meta(max_length=MOST_ROOTS)])
_sealed = msgspec.msgpack.Decoder(list[bytes])


class Audit(NamedTuple):
    """A verified export. `run`: its id. `first_root`: the hash that the invite pins. `entries`, `heads`: their numbers.
    `covered`: entries under the newest head. `tip`: hash of the last entry. `balances`: balances by account, without
    zeros. `currency`: currency in which the run pays; empty: it pays points. `logs`: the restored entries with which
    each later log began."""

    run: bytes
    first_root: bytes
    entries: int
    heads: int
    covered: int
    tip: bytes
    balances: dict[str, int]
    currency: str = ""
    logs: Sequence[int] = ()


def chain_of(folder: Path) -> tuple[Root, ...]:
    """Verify the Roots of an export, and return them. Raises `Untrusted`, and `LocalFault` for no export."""
    return tuple(root_chain.check_chain(tuple(_read_list(folder / ROOTS, _roots))))


def spec_of(folder: Path, chain: Sequence[Root]) -> RunSpec:
    """Verify the RunSpec of an export, and return it. Raises `Untrusted`, and `LocalFault` for no export."""
    return root_chain.check_runspec(_read(folder / RUNSPEC), chain[-1])


def audit(folder: Path, take: Callable[[Entry], None] | None = None) -> Audit:
    """Verify an export. `take`: called with each entry once it is verified. Raises `Tampered`, `Untrusted`, and
    `LocalFault` for a folder that is no export."""
    sealed_roots = _read_list(folder / ROOTS, _roots)
    chain = root_chain.check_chain(tuple(sealed_roots))
    spec = spec_of(folder, chain)
    sealed = _read_list(folder / HEADS, _sealed)
    logs = restored_logs(
        _read_list(folder / RESTORED_FILE, _sealed) if (folder / RESTORED_FILE).exists() else [], chain
    )
    heads = list(_heads(sealed, chain, logs))
    beacons = DrawnBeacons(spec.run, zip(heads, sealed, strict=True))

    def checked(entry: Entry) -> None:
        beacons.take(entry)
        if take is not None:
            take(entry)

    walk = LedgerWalk(heads, checked, logs)
    for path in entry_files(folder):
        walk.take_file(path)
    walk.end()
    if _read(folder / SUMS).decode(errors="replace") != sums(folder):
        raise Untrusted(f"a file of {folder} is not as it was exported: `sha256sum -c {SUMS}` there names it")
    covered = heads[-1].size if heads else 0
    first = root_chain.root_hash(sealed_roots[0])
    return Audit(
        spec.run, first, walk.seq, len(heads), covered, walk.tip, walk.balances(), spec.currency,
        [one.document.size for one in logs.logs],
    )  # fmt: skip


def lines(audited: Audit) -> list[str]:
    """Return the report as lines of text."""
    beyond = audited.entries - audited.covered
    return [
        f"run         {audited.run.hex()}",
        f"first Root  {audited.first_root.hex()}: compare it with the run's invite (`echo2-node` refuses another)",
        f"entries     {audited.entries}, chain, tree and balances right; the last has the hash {audited.tip.hex()}",
        f"heads       {audited.heads}, signed and consistent; {number_of(beyond, 'entry')} newer than the last head",
        *(
            f"restored    log {k} began behind {number_of(size, 'entry')} of a copy"
            for k, size in enumerate(audited.logs, start=1)
        ),
        due_line(audited.balances, audited.currency),
    ]


def due_line(balances: Mapping[str, int], currency: str | None) -> str:
    """Return the line of a report that says what the run owes to nodes. `balances`: balances by account, without zeros.
    `currency`: currency in which the run pays; empty: it pays points; None: not known."""
    kinds = (":accrued",) if currency == "" else (":accrued", ":unvested", ":payable")
    owed = {account: amount for account, amount in balances.items() if account.endswith(kinds)}
    nodes, total = number_of(len({account.split(":")[1] for account in owed}), "node"), sum(owed.values())
    if currency is None:
        unit = f"{total / 1000:.3f} RE if the run pays points, {amount_text(total)} of its currency if it pays money"
        return f"owed        {unit}, to {nodes}: this page serves no RunSpec, which would say which"
    return (
        f"owed        {amount_text(total, printable(currency))} to {nodes}"
        if currency
        else f"accrued     {total / 1000:.3f} RE by {nodes}"
    )


class LedgerWalk:
    """The verification of entries in order (rules 2 to 4). `seq`, `tip`, `sums`: number, tip and sums of the entries so
    far."""

    def __init__(
        self, heads: Sequence[LedgerHead], taken: Callable[[Entry], None] | None = None, logs: LogChain | None = None
    ) -> None:
        """`taken`: called with each entry. `logs`: logs of the run; None: it has the first alone."""
        self._logs, self._begun = logs, {0}
        self.seq, self.tip, self.sums = 0, ORIGIN, Counter[str]()
        self._taken = taken
        self._heads = list(reversed(heads))
        self._keys: set[bytes] = set()
        self._tree = GrowingRoot(sha256)
        self._restored = {one.document.size for one in (logs.logs if logs is not None else ())}
        self._roots: dict[int, bytes] = {}
        """The roots over the entries that were restored, by their number."""

    @property
    def root(self) -> bytes:
        """The root of the tree over the entries so far."""
        return self._tree.root

    def balances(self) -> dict[str, int]:
        """Return the sums by account, in alphabetical order, without zeros."""
        return {account: amount for account, amount in sorted(self.sums.items()) if amount}

    def take_file(self, path: Path) -> None:
        """Verify the entries of one file."""
        if int(path.name) != self.seq + 1:
            raise Tampered(self.seq + 1, f"is missing: the next file is {path.name}")
        try:
            rows = _rows.decode(_unpack_gzip(_read(path)))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise Tampered(self.seq + 1, f"its file {path.name} cannot be read: {error}") from error
        for row in rows:
            self.take(*row)

    def take(self, written: bytes, named: bytes) -> None:
        """Verify one entry. `written`: its canonical bytes. `named`: its hash."""
        number = self.seq + 1
        try:
            seq, at, kind, key, postings, facts = _entry.decode(written)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Tampered(number, f"does not decode: {error}") from error
        if seq != number:
            raise Tampered(number, f"is missing: entry {seq} stands in its place")
        if canonical(seq, at, kind, key, postings, facts) != written:
            raise Tampered(number, "its bytes are not canonical")
        if chain_hash(self.tip, written) != named:
            raise Tampered(number, "its hash is not that of its content and the hash before it")
        self._note(number, key, postings)
        if kind == LOG_RESTORED:
            self._begin(number, key, facts)
        self._tree.append(written)
        self.seq, self.tip = number, named
        if number in self._restored:
            self._roots[number] = self._tree.root
        if self._taken is not None:
            self._taken(Entry(seq, at, kind, key, postings, facts, named))
        while self._heads and self._heads[-1].size == number:
            self._compare(self._heads.pop())

    def _note(self, number: int, key: str, postings: Sequence[Posting]) -> None:
        name = sha256(key.encode())[:16]
        if name in self._keys:
            raise Tampered(number, f"another entry has the key {key}")
        self._keys.add(name)
        try:
            check_postings(postings)
        except LedgerFault as fault:
            raise Tampered(number, str(fault)) from fault
        for account, amount in postings:
            self.sums[account] += amount
        below = [account for account, _ in postings if self.sums[account] < 0 and account != FUND]
        if below:
            raise Tampered(number, f"{below[0]} falls below zero")

    def _begin(self, number: int, key: str, facts: bytes) -> None:
        """Verify the entry with which a restored log begins (rule 4)."""
        try:
            told = msgspec.msgpack.decode(facts, type=LogBegun)
        except msgspec.MsgspecError as error:
            raise Tampered(number, f"its facts are not those of a {LOG_RESTORED}: {error}") from error
        logs = self._logs.logs if self._logs is not None else ()
        one = logs[told.serial - 1] if 0 < told.serial <= len(logs) else None
        if one is None or told != LogBegun.of(one) or key != log_key(told.serial):
            raise Tampered(number, "it begins a log of which there is no document")
        if number <= told.size or self._roots.get(told.size) != one.document.root:
            raise Tampered(number, f"log {told.serial} restores other entries than stand before this one")
        self._begun.add(told.serial)

    def _compare(self, head: LedgerHead) -> None:
        if (self._tree.root, self.tip) != (head.root, head.tip):
            raise Tampered(self.seq, f"the ledger up to here is not that of LedgerHead {head.number}")
        if self._logs is not None and self._logs.serial_of(head.log) not in self._begun:
            raise Tampered(self.seq, f"LedgerHead {head.number} is of a log that no entry up to here begins")

    def end(self) -> None:
        """Check that no head covers further entries."""
        if self._heads:
            head = self._heads[-1]
            raise Tampered(self.seq + 1, f"is missing: LedgerHead {head.number} covers {number_of(head.size, 'entry')}")


def _verify_heads(sealed: Sequence[bytes], chain: Sequence[Root]) -> list[LedgerHead]:
    """Verify the signatures of heads, the newest first: one that counts vouches for the one that it names (rule 4)."""
    heads: list[LedgerHead] = []
    for number in range(len(sealed), 0, -1):
        one = sealed[number - 1]
        try:
            named = bool(heads) and names(heads[-1], one)
            payload = open_kept(one, "ledgerhead", chain, named=named)
            heads.append(decode(payload, LedgerHead))
        except Unproven as error:
            later = "export again once the coordinator has signed a later one"
            raise Untrusted(f"LedgerHead {number}: {error}, and no later head names it: {later}") from error
        except PeerFault as error:
            raise Untrusted(f"LedgerHead {number}: {error}") from error
    return heads[::-1]


def restored_logs(sealed: Sequence[bytes], chain: Sequence[Root]) -> LogChain:
    """Verify the documents of restored logs (rule 4)."""
    logs = LogChain(chain[-1].run)
    for one in sealed:
        try:
            logs = logs.with_next(open_log(one, chain))
        except PeerFault as error:
            raise Untrusted(f"the document of restored log {logs.serial + 1}: {error}") from error
    return logs


def _heads(sealed: Sequence[bytes], chain: Sequence[Root], logs: LogChain) -> Iterator[LedgerHead]:
    before: LedgerHead | None = None
    previous: bytes | None = None
    """The sealed head before."""
    for number, (one, head) in enumerate(zip(sealed, _verify_heads(sealed, chain), strict=True), start=1):
        grown = before is None or (head.size > before.size and head.issued > before.issued)
        continues = head.number == number and logs.admits(head) and names(head, previous)
        if not continues or not grown or not head.size:
            raise Untrusted(f"LedgerHead {number} does not continue the one before it")
        yield head
        before, previous = head, one


def _unpack_gzip(packed: bytes) -> bytes:
    """Return the content of a gzip file of one member. Raises `zlib.error`, also beyond `MOST_FILE` bytes."""
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: a gzip header and its sum
    data = stream.decompress(packed, MOST_FILE)
    if not stream.eof or stream.unused_data:
        raise zlib.error(f"it is cut off, has more than one member, or more than {MOST_FILE} bytes")
    return data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}: is it an export of a ledger?") from error


def _read_list(path: Path, decoder: "msgspec.msgpack.Decoder[list[bytes]]") -> list[bytes]:
    try:
        return decoder.decode(_read(path))
    except msgspec.MsgspecError as error:
        raise Untrusted(f"{path} is damaged: {error}") from error
