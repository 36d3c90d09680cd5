"""Verify a ledger over the tiles that its page serves (ledger_tiles.py): no file, no key, no account there.

Rules
1. The Roots are a chain; the caller compares the hash of the first with the run's invite. The newest checkpoint is
   signed by a ledger key of the newest Root. Where it is of a restored log, the documents of these follow each other.
2. All entries are fetched in bundles, one after the other, and verified as those of an export (ledger_audit.py, rules 2
   and 3). Their root must be that of the checkpoint.
3. Every tile of the tree must have the digests that follow from the entries.
4. The root key signed the RunSpec, which names the currency.
5. Memory is that of one entry and one tile, and 16 bytes per entry for its key.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from echo2.ledger.ledger_audit import LedgerWalk, due_line, restored_logs
from echo2.ledger.ledger_entries import Tampered, chain_hash, sha256
from echo2.ledger.tile_places import LENGTH, MOST_ENTRY, WIDTH, TilePlace, places
from echo2.p2p.errors import PeerFault
from echo2.p2p.swarm import merkle
from echo2.protocol import root_chain
from echo2.protocol.authority import MOST_ROOTS, Root
from echo2.protocol.ledger_heads import log_name, open_checkpoint
from echo2.protocol.restored_logs import LogChain
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.figures import number_of

MOST_DOCUMENT: Final = 1 << 20
"""Bytes of the Roots, the RunSpec, or a checkpoint."""
_roots = msgspec.msgpack.Decoder(Annotated[list[bytes], Meta(max_length=MOST_ROOTS)])
_NODE: Final = b"\x01"


class AnswerBody(Protocol):
    def read(self, most: int, /) -> bytes:
        """Return the next bytes, at most `most`; empty at the end."""


Fetch = Callable[[str], AbstractContextManager[AnswerBody]]
"""Path below `/ledger/` -> the body of the answer. Raises `Declined` where the page has no such path."""


class AuditedPage(NamedTuple):
    """A ledger that was verified over its tiles. `first_root`: the hash that the invite pins. `root`: root of the tree.
    `balances`: balances by account, without zeros. `currency`: currency in which the run pays; empty: it pays points;
    None: not known (rule 4)."""

    run: bytes
    first_root: bytes
    entries: int
    root: bytes
    tip: bytes
    balances: dict[str, int]
    currency: str | None

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        return [
            f"run         {self.run.hex()}",
            f"first Root  {self.first_root.hex()}: compare it with the run's invite (`echo2-node` refuses another)",
            f"entries     {self.entries}, tree, tiles and balances right; the last hash is {self.tip.hex()}",
            f"head        signed, over {number_of(self.entries, 'entry')}, root {self.root.hex()}",
            due_line(self.balances, self.currency),
        ]


def audit_tiles(fetch: Fetch) -> AuditedPage:
    """Verify the ledger of a page. Raises `Tampered` with the number of an entry, `Untrusted` for a document or tile,
    and the errors of `fetch`."""
    sealed = _fetch_list(fetch, "roots")
    chain = root_chain.check_chain(tuple(sealed))
    run, keys = chain[-1].run, chain[-1].roles["ledger"].keys
    currency = _currency(fetch, chain[-1])
    note = _document(fetch, "head").decode(errors="replace")
    logs = (
        LogChain(run) if note.startswith(f"{log_name(run)}\n") else restored_logs(_fetch_list(fetch, "restored"), chain)
    )
    try:
        head = open_checkpoint(note, logs.newest, keys)
    except PeerFault as error:
        raise Untrusted(f"the page's checkpoint: {error}") from error
    walk, levels = LedgerWalk([], logs=logs), _Levels(fetch)
    for place in places(head.size):
        digests = []
        with fetch(f"entries/{place.path()}") as body:
            for _ in range(place.width):
                written = _entry(body, walk.seq + 1)
                walk.take(written, chain_hash(walk.tip, written))
                digests.append(merkle.leaf_hash(written, sha256))
            if body.read(1):
                raise Tampered(walk.seq, f"the bundle {place.path()} has further bytes behind it")
        for digest in digests:  # with the bundle's answer at its end: the next file comes over the same connection
            levels.add(0, digest)
    levels.end()
    if head.size and walk.root != head.root:
        raise Tampered(head.size, "the tree of the entries up to here is not that of the signed checkpoint")
    return AuditedPage(run, root_chain.root_hash(sealed[0]), walk.seq, head.root, walk.tip, walk.balances(), currency)


class _Levels:
    """The digests of the tiles that are not whole yet, by level (rule 3)."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._digests: list[list[bytes]] = []
        self._whole: list[int] = []

    def add(self, level: int, digest: bytes) -> None:
        """Add the next digest of a level; compare its tile once that is whole."""
        if level == len(self._digests):
            self._digests.append([])
            self._whole.append(0)
        row = self._digests[level]
        row.append(digest)
        if len(row) < WIDTH:
            return
        self._compare(level, TilePlace(self._whole[level]))
        self._whole[level] += 1
        self._digests[level] = []
        while len(row) > 1:
            row = [sha256(_NODE + row[at] + row[at + 1]) for at in range(0, len(row), 2)]
        self.add(level + 1, row[0])

    def end(self) -> None:
        """Compare the partial tiles."""
        for level, row in enumerate(self._digests):
            if row:
                self._compare(level, TilePlace(self._whole[level], len(row)))

    def _compare(self, level: int, place: TilePlace) -> None:
        expected = b"".join(self._digests[level])
        with self._fetch(f"tile/{level}/{place.path()}") as body:
            if _whole(body, len(expected) + 1) != expected:
                raise Untrusted(f"the tile {level}/{place.path()} has other digests than follow from the entries")


def _currency(fetch: Fetch, root: Root) -> str | None:
    """Return the currency that the page's RunSpec names; None: it names none (rule 4)."""
    return root_chain.check_runspec(_document(fetch, "runspec"), root).currency


def _fetch_list(fetch: Fetch, path: str) -> list[bytes]:
    try:
        listed: list[bytes] = _roots.decode(_document(fetch, path))
    except msgspec.MsgspecError as error:
        raise Untrusted(f"the page's {path} are damaged: {error}") from error
    return listed


def _document(fetch: Fetch, path: str) -> bytes:
    with fetch(path) as body:
        data = _whole(body, MOST_DOCUMENT + 1)
    if len(data) > MOST_DOCUMENT:
        raise Untrusted(f"the page's `{path}` has more than {MOST_DOCUMENT} bytes")
    return data


def _entry(body: AnswerBody, number: int) -> bytes:
    """Read the next entry of a bundle. Raises `Tampered`."""
    prefix = _whole(body, LENGTH.size)
    length = LENGTH.unpack(prefix)[0] if len(prefix) == LENGTH.size else 0
    if not 0 < length <= MOST_ENTRY:
        raise Tampered(number, f"is missing in its bundle, or longer than {MOST_ENTRY} bytes")
    written = _whole(body, length)
    if len(written) < length:
        raise Tampered(number, "its bundle ends within it")
    return written


def _whole(body: AnswerBody, most: int) -> bytes:
    """Read until `most` bytes are there, or the end."""
    data = b""
    while len(data) < most and (part := body.read(most - len(data))):
        data += part
    return data
