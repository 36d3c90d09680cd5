"""A scorer process killed within a step of its folder leaves a complete version to the next one."""

import os
import random
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import numpy as np
import pytest

from echo2.coordinator.scorer_weights.scorer_weights import ScorerWeights
from echo2.coordinator.training.model_processes import restarts
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.supervisor import SupervisedEngine
from echo2.runtime.child import ChildDied
from echo2.weights.diff import encode
from echo2.weights.documents import Edge
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot, writing_snapshot
from tests.support import tiny_model

VERSIONS, KILLS = 5, 6


def edge(old: Snapshot, new: Snapshot, version: int, payload: Path) -> Edge:
    payload_file = encode(old, new, payload)
    return Edge(
        era=1, base=version - 1, base_root=old.root, version=version, root=new.root, codec=payload_file.codec,
        payload_hash=payload_file.hash, length=payload_file.length, chunk_size=1 << 18, chunk_root=bytes(32),
    )  # fmt: skip


def line_of(first: Snapshot, folder: Path) -> tuple[list[Snapshot], dict[Edge, Path]]:
    rng, snapshots, edges = np.random.default_rng(2), [first], {}
    for number in range(1, VERSIONS):
        old, path = snapshots[-1], folder / f"{number}.safetensors"
        with writing_snapshot(path, old.tensors, old.aliases) as writer:
            for entry in old.tensors:
                bits = old.bits(entry.name)
                writer.write(bits + (rng.random(len(bits)) < 0.02).astype(bits.dtype))
            writer.finish()
        snapshots.append(Snapshot(path))
        payload = folder / f"{number}.payload"
        edges[edge(old, snapshots[-1], number, payload)] = payload
    return snapshots, edges


@pytest.mark.slow
async def test_a_scorer_killed_within_a_step_continues_from_a_complete_version(tmp_path: Path) -> None:
    model = tiny_model.make(tmp_path / "model")
    versions, edges = line_of(Snapshot(model.snapshot), tmp_path)
    publisher: Any = SimpleNamespace(
        versions=[SimpleNamespace(era=1, version=number, root=one.root) for number, one in enumerate(versions)],
        stored=SimpleNamespace(snapshots=lambda: {versions[0].root: versions[0].path}, payloads=lambda: edges),
        payload=lambda edge: edges.get(edge),
        steps_from=lambda root: [edge for edge in edges if edge.base_root == root],
    )  # fmt: skip
    scorer = SupervisedEngine(lambda: EngineProcess(name="scorer"), restarts(), device="cpu")
    folder = tmp_path / "scorer"
    weights = ScorerWeights(scorer, publisher, model=model.folder, folder=folder, oldest=lambda: (1, 0))
    rng = random.Random(3)

    async def wander() -> None:
        while True:
            wanted = rng.choice(versions).root
            assert await weights.hold(wanted)
            assert scorer.loaded.root == wanted

    async def killed() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wander)
            await anyio.sleep(rng.random() * 0.2)
            assert scorer.pid is not None
            os.kill(scorer.pid, signal.SIGKILL)

    try:
        assert await weights.hold(versions[-1].root)
        for _ in range(KILLS):
            with pytest.raises(ExceptionGroup) as died:
                await killed()
            assert died.group_contains(ChildDied)
            rolling = Rolling(folder / "held")
            assert Snapshot(rolling.path).root == rolling.root
            assert {rolling.root, *rolling.behind(), *rolling.ahead()} == {one.root for one in versions}
            assert await weights.hold(versions[0].root)
            assert (scorer.loaded.behind, scorer.loaded.ahead) == ([], [one.root for one in versions[1:]])
    finally:
        await scorer.renew()
