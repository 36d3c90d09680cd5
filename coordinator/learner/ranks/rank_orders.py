"""Define the orders of rank 0 to the other ranks, and obey them there.

    rank 0 -> others   LoadBase                       each by itself, answered
                       CheckBase                      all together
                       TakeState                      each by itself, answered
                       Tune                           each by itself, answered
                       Train        a share           all together
                       WriteRows    of a snapshot     each by itself, answered
                       HashTensors  of a snapshot     each by itself, answered
                       WritePart    of a checkpoint   each by itself, answered

Rules
1. The pipe to the coordinator is rank 0's, and so is run.sqlite: no other rank opens a file of the coordinator but the
   base model and what the learner itself wrote.
2. An order that each obeys by itself is answered: with a value, or with a fault, which rank 0 raises. Afterwards the
   ranks are where they were.
3. A fault during an order that all obey together leaves the others waiting. So the rank ends, and by that all end
   (learner/ranks/rank_group.py): the coordinator starts the learner again, at its last checkpoint. Want of memory is no
   such fault (rank_part.py, rule 2).
4. A rank whose rank 0 has ended has nothing to do and ends without a fault: rank 0's own end says why.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import torch
from torch import Tensor

from echo2.coordinator.learner.batches.share_codec import decode_share
from echo2.coordinator.learner.checkpoints.checkpoint import TensorFile
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.model import NotFinetunable
from echo2.coordinator.learner.pass_sizes import PassSizes, TooLittleMemory
from echo2.coordinator.learner.ranks.rank_group import RankGroup
from echo2.coordinator.learner.ranks.rank_part import RankPart
from echo2.runtime.errors import DiskFull

LOST_CONNECTION_ERROR: Final = RuntimeError
"""The error of a connection whose other end is gone, as torch.distributed raises it (DistError is one)."""


class LoadBase(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load the base. The fields are those of `messages.Open`. `reference`: whether to load it once more, for the KL
    term."""

    model: str
    device: str
    threads: int
    hyper: Hyper
    reference: bool


class CheckBase(msgspec.Struct, frozen=True, tag=True):
    """CheckBase the base."""


class TakeState(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take weights and state. `weights`: a snapshot; "": the base. `checkpoint`: its files of tensors, if any."""

    hyper: Hyper
    weights: str
    checkpoint: list[str]


class Tune(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take other settings for the steps to come."""

    hyper: Hyper


class Train(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make a share of a step (share_codec.py). `passes`: given sizes of `PassSizes`."""

    share: bytes
    steps: int
    limit: int
    passes: list[int]


class Adopt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take the masters from the snapshot `weights`; the moments stay."""

    weights: str


class WriteRows(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write rows into the snapshot that was begun as the hidden file `partial`."""

    partial: str


class HashTensors(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Hash tensors of the snapshot `partial`, whose rows are all written."""

    partial: str


class WritePart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write a part of the checkpoint in `folder`."""

    folder: str


Order: TypeAlias = LoadBase | CheckBase | TakeState | Tune | Adopt | Train | WriteRows | HashTensors | WritePart


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to an order. `hashes`: hashes to HashTensors. `file`: file to WritePart. `fault`: (kind, message) of
    an error."""

    hashes: list[bytes] = []
    file: TensorFile | None = None
    fault: tuple[str, str] | None = None


class RankFault(Exception):
    """Another rank could not obey; the message has its number and its error."""


class Member:
    """A rank of a group, with its part of the model once it is prepared."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._part: RankPart | None = None

    @property
    def part(self) -> RankPart:
        assert self._part is not None, "rank 0 prepares first"
        return self._part

    def obey(self, order: Order, others: Mapping[str, Tensor] | None = None) -> Answer:
        """Obey an order that each rank obeys by itself. `others`: those of `WritePart`, tensors that are not
        divided."""
        match order:
            case LoadBase():
                self._part = None  # its memory first
                self._part = RankPart(
                    self._group, Path(order.model), order.device, order.threads, order.hyper, reference=order.reference
                )
            case TakeState():
                weights = Path(order.weights) if order.weights else None
                self.part.start(order.hyper, weights, [Path(file) for file in order.checkpoint])
            case Tune():
                self.part.tune(order.hyper)
            case Adopt():
                self.part.adopt(Path(order.weights))
            case WriteRows():
                self.part.write_rows(Path(order.partial))
            case HashTensors():
                return Answer(hashes=self.part.hash_tensors(Path(order.partial)))
            case WritePart():
                return Answer(file=self.part.write_part(Path(order.folder), others or {}))
            case CheckBase() | Train():
                raise TypeError(f"{type(order).__name__} is no order for one rank")
        return Answer()


def answer_order(member: Member, order: Order) -> Answer:
    """Obey an order; an error becomes the answer (rule 2)."""
    try:
        return member.obey(order)
    except Exception as error:
        return Answer(fault=(type(error).__name__, str(error)))


def raise_faults(answers: Sequence[Answer]) -> None:
    """Raise the first fault of another rank. `answers`: answers by rank, from 1 on. Raises RankFault, DiskFull,
    OutOfMemoryError."""
    for rank, answer in enumerate(answers, 1):
        if answer.fault is not None:
            kind, message = answer.fault
            if kind == torch.OutOfMemoryError.__name__:
                raise torch.OutOfMemoryError(f"rank {rank}: {message}")
            raise DiskFull(message) if kind == DiskFull.__name__ else RankFault(f"rank {rank}: {kind}: {message}")


def follow(group: RankGroup) -> None:
    """Obey rank 0, until it ends (rule 4). Errors of rule 3 are raised."""
    member = Member(group)
    while (data := _next(group)) is not None:
        match msgspec.msgpack.decode(data, type=Order):
            case CheckBase():
                with contextlib.suppress(NotFinetunable):  # rank 0 raises it too
                    member.part.check()
            case Train() as order:
                with contextlib.suppress(TooLittleMemory):  # rank 0 raises it too
                    member.part.train(decode_share(order.share), order.steps, order.limit, PassSizes(order.passes))
            case order:
                group.send(0, msgspec.msgpack.encode(answer_order(member, order)))


def _next(group: RankGroup) -> bytes | None:
    try:
        return group.receive(0)
    except LOST_CONNECTION_ERROR:
        return None
