"""Connect the ranks of a learner, processes that torchrun started: sums and gathers during a step, and messages between
rank 0 and each other rank.

Rules
1. A rank that ends breaks its connections at once, and every call of another rank that needs it raises. Then that rank
   ends too: what a rank has left of a step is of no use (learner/ranks/rank_orders.py).
2. During a step a rank waits `STEP_TIMEOUT` for another, so that a host that stands still is noticed. Between two steps
   it waits without a limit: the learner may have no groups for hours.
3. Messages go through the CPU (gloo), tensors of a step through the backend of their device (gloo or NCCL).
4. A rank that cannot finish a step leaves it: its connections for the step end, by which every other rank's call of the
   step raises, within `POLL_SECONDS` also where a card waits for it. Then all leave it, say in messages why, and meet
   again for the step if one of them lacked memory. gloo closes connections only when nothing refers to their group, so
   the model that uses it must be gone.
"""

import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

STEP_TIMEOUT: Final = timedelta(minutes=30)
POLL_SECONDS: Final = 1.0
"""Seconds between two looks at whether another rank has left the step (rule 4)."""
_NO_TIMEOUT: Final = timedelta(days=3650)


class RankGroup:
    """The ranks of this learner (`learner.ranks.Ranks`), and messages between them."""

    def __init__(self) -> None:
        """Meet the other ranks, which torchrun's environment names. Raises RuntimeError (DistError is one)."""
        self._backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(self._backend, timeout=STEP_TIMEOUT)
        self._messages = dist.new_group(backend="gloo", timeout=_NO_TIMEOUT)
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._store, self._meetings = dist.distributed_c10d._get_default_store(), 0
        self._meet()

    def _meet(self) -> None:
        """Connect the ranks for steps."""
        self._meetings += 1
        self._steps: dist.ProcessGroup | None = dist.new_group(backend=self._backend, timeout=STEP_TIMEOUT)
        threading.Thread(target=self._watch, args=(self._meetings,), name="left", daemon=True).start()

    def _watch(self, meeting: int) -> None:
        """End the calls of a step that another rank has left (rule 4)."""
        with contextlib.suppress(RuntimeError):  # the store has ended, and so will this rank
            while self._meetings == meeting and not self._store.check([f"left/{meeting}"]):
                time.sleep(POLL_SECONDS)
            group = self._steps
            if self._meetings == meeting and group is not None:
                group.abort()

    def leave(self) -> None:
        """Leave the step (rule 4), once nothing else refers to its group."""
        group, self._steps = self._steps, None
        self._store.set(f"left/{self._meetings}", "1")
        if group is not None:
            group.abort()
            dist.destroy_process_group(group)
        del group
        clear: Callable[[], None] = _clear_sharding_prop_cache  # it refers to the mesh, and so to the group
        clear()
        gc.collect()

    def meet_again(self, *, lacking: bool) -> bool:
        """Meet for the step that all have left, if a rank lacked memory; return whether one did. `lacking`: whether
        this one did. Raises RuntimeError where a rank has ended."""
        told = torch.tensor([lacking])
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._messages)
        if told:
            self._meet()
        return bool(told)

    def device(self, name: str) -> str:
        """Return this rank's device: of GPUs the one of its number on its host. `name`: `learner.device`."""
        return f"cuda:{os.environ['LOCAL_RANK']}" if torch.device(name).type == "cuda" else name

    def mesh(self, device: str) -> DeviceMesh:
        """Return all ranks in one dimension, for PyTorch. `device`: this rank's."""
        kind = torch.device(device).type
        if kind == "cuda":
            torch.cuda.set_device(device)
        assert self._steps is not None, "the ranks have met"
        return DeviceMesh.from_group(self._steps, kind)

    def total(self, values: Tensor) -> Tensor:
        """See `Ranks`. The sum has the same bits on all ranks."""
        result = values.clone()
        dist.all_reduce(result, group=self._steps)
        return result

    def most(self, value: int) -> int:
        """See `Ranks`."""
        result = torch.tensor([value])
        dist.all_reduce(result, dist.ReduceOp.MAX, group=self._steps)
        return int(result)

    def gather_by_rank(self, values: Tensor) -> list[Tensor]:
        """See `Ranks`."""
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(lengths, torch.tensor([len(values)]), group=self._steps)
        longest = max(map(int, lengths))
        filled = torch.cat([values, values.new_zeros(longest - len(values))])
        parts = [torch.empty_like(filled) for _ in range(self.count)]
        dist.all_gather(parts, filled, group=self._steps)
        return [part[: int(length)] for part, length in zip(parts, lengths, strict=True)]

    def send(self, rank: int, message: bytes) -> None:
        """Send a message to another rank."""
        dist.send(torch.tensor([len(message)]), rank, group=self._messages)
        if message:
            dist.send(torch.frombuffer(bytearray(message), dtype=torch.uint8), rank, group=self._messages)

    def receive(self, rank: int) -> bytes:
        """Return the next message from another rank."""
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, rank, group=self._messages)
        message = torch.empty(int(length), dtype=torch.uint8)
        if len(message):
            dist.recv(message, rank, group=self._messages)
        return message.numpy().tobytes()
