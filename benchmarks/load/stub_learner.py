"""The learner's process without a model: a step takes no time. `learner=benchmarks.load.stub_learner`
(runtime/stand_ins.py).

Pipe, frames and types are the product's own. A version is a real snapshot with real diffs: from the version before, and
for every 32nd version also from version 0. The ids of the last drawn leases are in the file `DRAWN` of the learner's
folder, for the next start.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.load.folder import write_weights
from benchmarks.load.published import ANCHOR_EVERY
from echo2.coordinator.learner.messages import Batch, Export, ExportedEdge, Open, Opened, Stepped
from echo2.runtime.child_pipe import Pipe
from echo2.weights.diff import encode, encode_full
from echo2.weights.snapshot import Snapshot

DRAWN: Final = "stub.drawn"
"""A file with a MessagePack list of lease ids."""
_KEPT: Final = 20  # versions whose files stay
_MOST_DRAWN: Final = 10_000


class StubLearner:
    """Answers the calls `open` and `step` of coordinator/learner/messages.py."""

    def __init__(self) -> None:
        self._folder, self._last = Path(), 0
        self._drawn: list[bytes] = []

    def handlers(self) -> Mapping[str, tuple[Any, Callable[[Any], Any]]]:
        return {"open": (Open, self.open), "train": (Batch, self.step)}

    def open(self, order: Open) -> Opened:
        self._folder = Path(order.folder) / "exports"
        self._folder.mkdir(parents=True, exist_ok=True)
        drawn = self._folder.with_name(DRAWN)
        self._drawn = msgspec.msgpack.decode(drawn.read_bytes(), type=list[bytes]) if drawn.exists() else []
        self._snapshot(0)
        export = None if order.published else self._export(0)
        self._last = step = order.published_version if order.published else 0
        return Opened(step=step, drawn=list(self._drawn), parameters=1, export=export)

    def step(self, batch: Batch) -> Stepped:
        self._drawn = [*self._drawn, *batch.groups][-_MOST_DRAWN:]
        self._folder.with_name(DRAWN).write_bytes(msgspec.msgpack.encode(self._drawn))
        export = self._export(batch.step) if batch.export else None
        return Stepped(
            step=batch.step,
            metrics={"loss": 0.0, "reward": 0.5, "success": 0.5, "staleness_mean": 1.0},
            seconds=0.001,
            export=export,
        )

    def _export(self, version: int) -> Export:
        new = self._snapshot(version)
        bases = [self._last, *([0] if version % ANCHOR_EVERY == 0 else [])] if version else [None]
        edges = [self._edge(base, new, version) for base in bases]
        self._last = version
        for path in self._folder.glob(f"v{version - _KEPT}[.-]*"):
            path.unlink()
        return Export(version=version, root=new.root, snapshot=str(new.path), edges=edges, seconds=0.0)

    def _edge(self, base: int | None, new: Snapshot, version: int) -> ExportedEdge:
        payload = self._folder / f"v{version}-from-{base}.edge"
        if base is None:
            encode_full(new, payload)
            return ExportedEdge(base=None, base_root=None, payload=str(payload))
        old = self._snapshot(base)
        encode(old, new, payload)
        return ExportedEdge(base=base, base_root=old.root, payload=str(payload))

    def _snapshot(self, version: int) -> Snapshot:
        path = self._folder / f"v{version}.safetensors"
        return Snapshot(path) if path.exists() else write_weights(path, version)


def main() -> None:
    """Serve the learner's calls until the daemon ends."""
    Pipe().serve(StubLearner().handlers())
