"""The turns of served episodes that are under way, and their leases, in SQLite.

Rules
1. A sampled turn, with its log-probabilities, is stored before it is sent to the coordinator, and its answer before the
   engine goes on. So a process that starts again goes on from there: the tokens that the coordinator has written are
   never sampled anew.
2. A lease is stored with the class of the engine that generates it: another class would give other log-probabilities.
3. All rows of a lease are deleted once its submission is in the outbox, or it is given back.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.engines.engine import Sample, SampledTurn
from echo2.engines.process.messages import float_bytes
from echo2.node.durable_file import DurableFile
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease

SCHEMA: Final = """
CREATE TABLE leases (id BLOB PRIMARY KEY, document BLOB NOT NULL, engine_class TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE turns (
    lease BLOB NOT NULL, sample INTEGER NOT NULL, turn_number INTEGER NOT NULL, tokens BLOB NOT NULL,
    logprobs BLOB NOT NULL, answered INTEGER NOT NULL DEFAULT 0, given BLOB,
    PRIMARY KEY (lease, sample, turn_number)
) WITHOUT ROWID;
"""


class StoredLease(NamedTuple):
    """A lease of a served task, and the engine class that generates it."""

    lease: Lease
    engine_class: str


class TurnAnswered(NamedTuple):
    """The answer to a turn. `given`: the environment's tokens; None: the episode is over."""

    given: list[int] | None


class TurnStore:
    """The file of one node and run. Each method may raise `TryLater`."""

    def __init__(self, path: Path) -> None:
        """Raises `BadConfig` if the file is damaged."""
        self._file = DurableFile(path, SCHEMA, lost="groups of several turns that were under way are given back")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def put_lease(self, lease: Lease, engine_class: str) -> None:
        """Store a lease that came."""
        self._file.do("INSERT OR IGNORE INTO leases VALUES (?, ?, ?)", (lease.id, encode(lease), engine_class))

    def leases(self) -> list[StoredLease]:
        """Return the stored leases."""
        rows = self._file.do("SELECT document, engine_class FROM leases").fetchall()
        return [StoredLease(decode(document, Lease), engine_class) for document, engine_class in rows]

    def put_turn(self, sampled_turn: SampledTurn) -> None:
        """Store a sampled turn, if it is not stored yet. Its `served` is the lease's id."""
        row = (
            sampled_turn.served,
            sampled_turn.sample,
            sampled_turn.turn_number,
            _pack_tokens(sampled_turn.tokens),
            float_bytes(sampled_turn.logprobs),
        )
        self._file.do(
            "INSERT OR IGNORE INTO turns (lease, sample, turn_number, tokens, logprobs) VALUES (?, ?, ?, ?, ?)", row
        )

    def answer(self, sampled_turn: SampledTurn) -> TurnAnswered | None:
        """Return the stored answer to a turn; None: it has none yet."""
        query = "SELECT answered, given FROM turns WHERE lease = ? AND sample = ? AND turn_number = ?"
        row = self._file.do(query, (sampled_turn.served, sampled_turn.sample, sampled_turn.turn_number)).fetchone()
        return TurnAnswered(_unpack_tokens(row[1])) if row is not None and row[0] else None

    def put_answer(self, sampled_turn: SampledTurn, given: Sequence[int] | None) -> None:
        """Store the answer to a turn."""
        packed = None if given is None else _pack_tokens(given)
        self._file.do(
            "UPDATE turns SET answered = 1, given = ? WHERE lease = ? AND sample = ? AND turn_number = ?",
            (packed, sampled_turn.served, sampled_turn.sample, sampled_turn.turn_number),
        )

    def past(self, lease: bytes, samples: int) -> list[Sample]:
        """Return what each sample of a lease's group has so far."""
        query = "SELECT tokens, logprobs, given FROM turns WHERE lease = ? AND sample = ? ORDER BY turn_number"
        return [_sample(self._file.do(query, (lease, number)).fetchall()) for number in range(samples)]

    def given_tokens(self, lease: bytes, sample: int) -> int:
        """Return how many tokens a sample has been given so far."""
        rows = self._file.do("SELECT given FROM turns WHERE lease = ? AND sample = ?", (lease, sample)).fetchall()
        return sum(len(_unpack_tokens(given) or []) for (given,) in rows)

    def forget(self, leases: Sequence[bytes]) -> None:
        """Delete these leases and their turns."""
        for table, column in (("turns", "lease"), ("leases", "id")) if leases else ():
            self._file.do_many(f"DELETE FROM {table} WHERE {column} = ?", [(lease,) for lease in leases])


def _sample(rows: Sequence[tuple[bytes, bytes, bytes | None]]) -> Sample:
    tokens, turns, logprobs = list[int](), list[int](), list[float]()
    for sampled, values, given in rows:
        for part in (_unpack_tokens(sampled) or [], _unpack_tokens(given) or []):
            tokens += part
            turns += [len(part)] if part or not turns else []  # the first may be empty: the environment opens
        logprobs += struct.unpack(f"<{len(values) // 4}f", values)
    return Sample(tokens=tokens, turns=turns, logprobs=logprobs)


def _pack_tokens(tokens: Sequence[int]) -> bytes:
    return msgspec.msgpack.encode(list(tokens))


def _unpack_tokens(packed: bytes | None) -> list[int] | None:
    return None if packed is None else msgspec.msgpack.decode(packed, type=list[int])
