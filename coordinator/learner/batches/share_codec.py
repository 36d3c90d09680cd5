"""Encode a rank's share of a step as bytes: rank 0 reads the groups and sends each rank its own. No pickle.

Producer: rank 0. Consumer: the rank of that number, a process of the same program. Arrays are little-endian: tokens and
positions int32, log-probabilities float32.
"""

import msgspec
import numpy as np

from echo2.coordinator.learner.batches.batch import TrainRow
from echo2.coordinator.learner.batches.dealing import MiniShare, Share

_INTEGERS, _FLOATS = "<i4", "<f4"


class _Row(msgspec.Struct, array_like=True, frozen=True):
    tokens: bytes
    targets: bytes
    behaviour: bytes
    advantage: float
    age: int
    prompt: int
    group: int
    expected: float


class _Share(msgspec.Struct, array_like=True, frozen=True):
    minis: list[tuple[list[list[_Row]], list[list[_Row]]]]
    covers_flat: bool
    tokens: int
    rollouts: int
    ages: int


def encode_share(share: Share) -> bytes:
    minis = [([*map(_rows, mini.signal)], [*map(_rows, mini.flat)]) for mini in share.minis]
    return msgspec.msgpack.encode(_Share(minis, *share[1:]))


def decode_share(data: bytes) -> Share:
    """Return the share of these bytes. Raises msgspec.MsgspecError."""
    sent = msgspec.msgpack.decode(data, type=_Share)
    minis = [MiniShare([*map(_train_rows, signal)], [*map(_train_rows, flat)]) for signal, flat in sent.minis]
    return Share(minis, sent.covers_flat, sent.tokens, sent.rollouts, sent.ages)


def _rows(group: list[TrainRow]) -> list[_Row]:
    return [
        _Row(
            row.tokens.astype(_INTEGERS).tobytes(),
            row.targets.astype(_INTEGERS).tobytes(),
            row.behaviour.astype(_FLOATS).tobytes(),
            *row[3:],
        )
        for row in group
    ]


def _train_rows(group: list[_Row]) -> list[TrainRow]:
    return [
        TrainRow(
            np.frombuffer(row.tokens, _INTEGERS).astype(np.int32),
            np.frombuffer(row.targets, _INTEGERS).astype(np.int64),
            np.frombuffer(row.behaviour, _FLOATS).astype(np.float32),
            row.advantage,
            row.age,
            row.prompt,
            row.group,
            row.expected,
        )
        for row in group
    ]
