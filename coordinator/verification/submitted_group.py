"""Decode a submitted group for the main process: tokens and log-probabilities stay arrays or the wire's own bytes.

Rules
1. `decode_group` accepts and refuses the same bytes as `decode(data, Submission)`. Its rollouts keep the token ids as
   they were received, as MessagePack, which goes to the scorer unchanged. The ids are decoded at the first access.
2. No log-probability becomes a Python object and, for small vocabularies, no token id does. The ids of a rollout of at
   most `SHORT` tokens are a list, which costs less to check than an array.
3. `lease_of` decodes only the lease's id. So the owner of a group, and whether it is wanted, are known before the rest
   is decoded: a submission can be crafted so that decoding the rest costs a hundred times as much.
"""

import struct
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Count, Hash, Id, Milliseconds, Tokens, decode
from echo2.protocol.leases import Segment
from echo2.tasks.turn_ends import SHORT_TURN_TOKENS

Ids = NDArray[np.int32]
MOST_ROLLOUT_TOKENS: Final = 1 << 20
"""Most token ids of a rollout, the bound of `p2p.wire_types.Tokens`."""
_HEADS: Final = {0xDC: struct.Struct(">xH"), 0xDD: struct.Struct(">xI")}
_ids = msgspec.msgpack.Decoder(Tokens).decode


class UnreadRollout(msgspec.Struct, frozen=True, kw_only=True):
    """`protocol.leases.Rollout` with its token ids not decoded."""

    tokens: msgspec.Raw
    turns: Annotated[list[Count], Meta(max_length=1024)]
    logprobs: bytes
    segments: Annotated[list[Segment], Meta(min_length=1, max_length=16)]


class UnreadSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """`protocol.leases.Submission` with `UnreadRollout`s."""

    lease: Id
    era: Count
    version: Count
    root: Hash
    rollouts: Annotated[list[UnreadRollout], Meta(max_length=1024)]
    ranges: Hash | None = None
    waited: Milliseconds | None = None
    took: Milliseconds | None = None


class _Named(msgspec.Struct, frozen=True):
    """`protocol.leases.Submission` with only the lease's id decoded."""

    lease: Id


_named = msgspec.msgpack.Decoder(_Named).decode


class ClaimedRollout:
    """A rollout as the node claims it. `packed`: its token ids as MessagePack. `logprobs`: float32 little-endian, one
    per sampled token."""

    def __init__(self, rollout: UnreadRollout) -> None:
        self.packed: msgspec.Raw = rollout.tokens
        self.turns = rollout.turns
        self.logprobs = rollout.logprobs
        self.segments = rollout.segments
        self._tokens: list[int] | Ids | None = None

    @property
    def tokens(self) -> list[int] | Ids:
        """The token ids, decoded at the first access: a list up to `SHORT`, else an array. Raises `Malformed` if the
        bytes are no list of token ids."""
        if self._tokens is None:
            self._tokens = decode_ids(bytes(self.packed))
        return self._tokens

    def pack(self) -> None:
        """Drop the decoded token ids; the next access decodes them again."""
        self._tokens = None


class SubmittedGroup(msgspec.Struct, frozen=True):
    """A submission with its rollouts as `ClaimedRollout`s. `nbytes`: bytes of the submission; the packed token ids
    refer to it, so it stays in memory as long as they do, with every field that was ignored."""

    lease: bytes
    era: int
    version: int
    root: bytes
    rollouts: list[ClaimedRollout]
    nbytes: int
    ranges: bytes | None = None
    waited: int | None = None
    took: int | None = None


def lease_of(data: bytes) -> bytes:
    """Return the id of the lease that a submission names. Raises `Malformed` if it names none."""
    try:
        return _named(data).lease
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(f"not a Submission: {error}") from error


def decode_group(data: bytes) -> SubmittedGroup:
    """Decode a submission and all its token ids. Raises `Malformed`."""
    group = decode_stored_group(data)
    for rollout in group.rollouts:
        rollout.tokens  # noqa: B018 (read and checked here, kept for the checks that follow)
    return group


def decode_stored_group(data: bytes) -> SubmittedGroup:
    """Decode a submission that `decode_group` accepted before; its token ids are decoded at the first access."""
    submission = decode(data, UnreadSubmission)
    return SubmittedGroup(
        submission.lease,
        submission.era,
        submission.version,
        submission.root,
        [ClaimedRollout(one) for one in submission.rollouts],
        len(data),
        submission.ranges,
        submission.waited,
        submission.took,
    )


def decode_ids(packed: bytes) -> list[int] | Ids:
    """Decode the token ids of a MessagePack array: to a list up to `SHORT`, else to an array. Raises `Malformed`."""
    count, start = _head(packed)
    one_byte_each = len(packed) - start == count <= MOST_ROLLOUT_TOKENS  # an id below 128 is encoded as itself
    if one_byte_each and (items := packed[start:]).isascii():
        return list(items) if count <= SHORT_TURN_TOKENS else np.frombuffer(items, np.uint8).astype(np.int32)
    try:
        values = _ids(packed)
    except msgspec.MsgspecError as error:
        raise Malformed(f"not a Submission: {error} - in `$.rollouts[...].tokens`") from error
    return values if len(values) <= SHORT_TURN_TOKENS else np.fromiter(values, np.int32, len(values))


def _head(packed: bytes) -> tuple[int, int]:
    """Return (number of items, offset of the first) of a MessagePack array; (-1, 0) if the bytes are none."""
    first = packed[0]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    head = _HEADS.get(first)
    return (head.unpack_from(packed)[0], head.size) if head is not None and len(packed) >= head.size else (-1, 0)
