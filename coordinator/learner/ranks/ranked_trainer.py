"""Train with several ranks, from rank 0: tell the others what to do, and do the same."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
from torch import Tensor

from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.batches.dealing import shares
from echo2.coordinator.learner.batches.share_codec import encode_share
from echo2.coordinator.learner.checkpoints.checkpoint import Checkpoint, TensorFile
from echo2.coordinator.learner.messages import Hyper, Open
from echo2.coordinator.learner.model import NotFinetunable
from echo2.coordinator.learner.pass_sizes import PassSizes, TooLittleMemory
from echo2.coordinator.learner.ranks.rank_group import RankGroup
from echo2.coordinator.learner.ranks.rank_orders import (
    LOST_CONNECTION_ERROR,
    Adopt,
    Answer,
    CheckBase,
    HashTensors,
    LoadBase,
    Member,
    Order,
    TakeState,
    Train,
    Tune,
    WritePart,
    WriteRows,
    raise_faults,
)
from echo2.coordinator.learner.step import metrics_of, rows_of
from echo2.weights import snapshot_parts
from echo2.weights.snapshot import Snapshot

T = TypeVar("T")


class RankedTrainers:
    """Makes the trainers of a process, which is rank 0 (`learner.trainer.TrainerOf`). `end`: end of `RankedTrainer`.
    `met`: hears the number of ranks once all are connected."""

    def __init__(self, end: Callable[[Exception], NoReturn], met: Callable[[int], None]) -> None:
        self._end, self._met = end, met
        self._group: RankGroup | None = None

    def __call__(self, order: Open) -> "RankedTrainer":
        """Meet the other ranks at the first order; load the base on all."""
        try:
            self._group = self._group or RankGroup()
        except LOST_CONNECTION_ERROR as error:
            self._end(error)
        self._met(self._group.count)
        return RankedTrainer(order, self._group, self._end)


class RankedTrainer:
    """A trainer of several ranks (`learner.trainer.Trainer`). `end`: ends this process, with the error for its log."""

    def __init__(self, order: Open, group: RankGroup, end: Callable[[Exception], NoReturn]) -> None:
        """Load the base on all ranks. Raises BadModelFolder, NotFinetunable, BadSnapshot, RankFault."""
        self._order, self._group, self._end, self._hyper = order, group, end, order.hyper
        self._member = Member(group)
        self._each(
            LoadBase(
                model=order.model,
                device=order.device,
                threads=order.threads,
                hyper=order.hyper,
                reference=order.hyper.kl_coefficient > 0,
            )
        )
        self._together([CheckBase()] * (group.count - 1), self._member.part.check)

    @property
    def ranks(self) -> int:
        """See `Trainer`."""
        return self._group.count

    @property
    def parameters(self) -> int:
        """See `Trainer`."""
        return self._member.part.parameters

    def start(self, hyper: Hyper, weights: Path | None, checkpoint: Checkpoint | None) -> None:
        """See `Trainer`."""
        files, self._hyper = [str(file) for file in checkpoint.files] if checkpoint else [], hyper
        self._each(TakeState(hyper=hyper, weights=str(weights or ""), checkpoint=files))

    def tune(self, hyper: Hyper) -> None:
        """See `Trainer`."""
        self._hyper = hyper
        self._each(Tune(hyper=hyper))

    def step(self, batch: TrainBatch, steps: int, sizes: PassSizes) -> dict[str, float]:
        """See `Trainer`."""
        hyper, limit = self._hyper, self._order.limit
        train_rows = rows_of(batch, hyper, limit, self._order.ends)
        dealt = shares(train_rows, hyper.minibatches, self._group.count)
        orders = [Train(share=encode_share(share), steps=steps, limit=limit, passes=sizes.given) for share in dealt[1:]]
        done = self._together(orders, lambda: self._member.part.train(dealt[0], steps, limit, sizes))
        return metrics_of(batch, train_rows, done)

    def adopt(self, snapshot: Snapshot) -> None:
        """See `Trainer`."""
        self._each(Adopt(weights=str(snapshot.path)))

    def save_snapshot(self, path: Path) -> Snapshot:
        """See `Trainer`."""
        partial = self._member.part.begin_snapshot(path)
        self._each(WriteRows(partial=str(partial)))
        parts = [answer.hashes for answer in self._each(HashTensors(partial=str(partial)))]
        count = sum(map(len, parts))
        hashes = [parts[number % len(parts)][number // len(parts)] for number in range(count)]
        return snapshot_parts.finish(path, hashes)

    def save_tensors(self, folder: Path, others: Mapping[str, Tensor]) -> list[TensorFile]:
        """See `Trainer`."""
        answers = self._each(WritePart(folder=str(folder)), others)
        return [answer.file for answer in answers if answer.file is not None]

    def _each(self, order: Order, others: Mapping[str, Tensor] | None = None) -> list[Answer]:
        """Have each rank obey by itself; return the answers by rank. Raises RankFault, and what rank 0 raises, once all
        have answered."""
        self._send([order] * (self._group.count - 1))
        failed: Exception | None = None
        try:
            own = self._member.obey(order, others)
        except Exception as error:
            failed = error
        answers = self._answers()
        if failed is not None:
            raise failed
        raise_faults(answers)
        return [own, *answers]

    def _together(self, orders: Sequence[Order], work: Callable[[], T]) -> T:
        """Send the others their orders, and do rank 0's part. An error ends all ranks (rank_orders.py, rule 3), but one
        that all raise."""
        self._send(orders)
        try:
            return work()
        except (NotFinetunable, TooLittleMemory):
            raise
        except Exception as error:
            self._end(error)

    def _send(self, orders: Sequence[Order]) -> None:
        try:
            for rank, order in enumerate(orders, 1):
                self._group.send(rank, msgspec.msgpack.encode(order))
        except LOST_CONNECTION_ERROR as lost:
            self._end(lost)

    def _answers(self) -> list[Answer]:
        ranks = range(1, self._group.count)
        try:
            return [msgspec.msgpack.decode(self._group.receive(rank), type=Answer) for rank in ranks]
        except LOST_CONNECTION_ERROR as lost:
            self._end(lost)
