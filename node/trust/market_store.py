"""A node's asks with their salts, and what the run answered about each epoch, on disk.

Rules
1. An ask and its salt are durable before the commitment to it is sent. There is one per epoch, and it never changes: a
   process that starts again opens the ask that the one before it sealed.
2. Of each epoch the last answer stays in which that epoch ran: what the run promised the node. The newest `KEPT_EPOCHS`
   stay.
3. An answer that does not decode, as of another version of this program, counts as none.
4. The file is this user's alone: a salt is a secret until its ask is opened.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

from echo2.node.durable_file import DurableFile
from echo2.node.errors import TryLater
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.market import MarketResponse
from echo2.runtime.surroundings import sentence_of

FILE: Final = "market.sqlite"
"""Of the folder of a run."""
KEPT_EPOCHS: Final = 10_000
"""Epochs of which answers and asks stay."""
SCHEMA: Final = """
CREATE TABLE asks (
    epoch INTEGER PRIMARY KEY, ask INTEGER NOT NULL, salt BLOB NOT NULL, hash BLOB NOT NULL
);
CREATE TABLE answers (epoch INTEGER PRIMARY KEY, at INTEGER NOT NULL, answer BLOB NOT NULL);
"""
_NEWEST_ROW: Final = 0
"""The row of `answers` that has the newest answer: epochs begin at 1."""


class StoredAsk(NamedTuple):
    """An ask for an epoch, as it was sealed. `hash`: the commitment to it."""

    epoch: int
    ask: int
    salt: bytes
    hash: bytes


class StoredAnswer(NamedTuple):
    """An answer of the run. `at`: ms, the coordinator's clock as the node estimates it."""

    at: int
    answer: MarketResponse


class MarketStore:
    """The file. Each method may raise `TryLater`: the disk is full or fails."""

    def __init__(self, path: Path) -> None:
        """Raises `BadConfig` if the file is damaged."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            refused = f"the disk refuses {path} ({error.strerror}): free space there, or check it"
            raise TryLater(sentence_of(error, refused)) from error
        self._file = DurableFile(path, SCHEMA, lost="an ask that was sealed and not opened changes nothing then")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def ask_for(self, epoch: int) -> StoredAsk | None:
        """Return the ask that was sealed for an epoch; None: none was."""
        row = self._file.do("SELECT epoch, ask, salt, hash FROM asks WHERE epoch = ?", (epoch,)).fetchone()
        return None if row is None else StoredAsk(row[0], row[1], bytes(row[2]), bytes(row[3]))

    def put_ask(self, one: StoredAsk) -> None:
        """Store an ask that is about to be sealed (rule 1)."""
        self._file.do("INSERT INTO asks VALUES (?, ?, ?, ?)", one)
        self._file.do("DELETE FROM asks WHERE epoch <= ?", (one.epoch - KEPT_EPOCHS,))

    def put_answer(self, answer: MarketResponse, at: int) -> None:
        """Store an answer (rule 2). `at`: ms."""
        epochs = [_NEWEST_ROW] if answer.running is None else [_NEWEST_ROW, answer.running.epoch]
        data = encode(answer)
        self._file.do_many("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", [(epoch, at, data) for epoch in epochs])
        self._file.do("DELETE FROM answers WHERE epoch > 0 AND epoch <= ?", (epochs[-1] - KEPT_EPOCHS,))

    def newest(self) -> StoredAnswer | None:
        """Return the newest answer; None: there is none."""
        return self._answer(_NEWEST_ROW)

    def of_epoch(self, epoch: int) -> MarketResponse | None:
        """Return what the run promised for an epoch; None: this node did not ask while it ran."""
        stored = self._answer(epoch) if epoch > 0 else None
        return None if stored is None else stored.answer

    def _answer(self, epoch: int) -> StoredAnswer | None:
        row = self._file.do("SELECT at, answer FROM answers WHERE epoch = ?", (epoch,)).fetchone()
        try:
            return None if row is None else StoredAnswer(row[0], decode(bytes(row[1]), MarketResponse))
        except Malformed:
            return None
