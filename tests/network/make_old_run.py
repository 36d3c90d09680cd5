"""Make a run folder of an old commit, with that commit's own code: in a checkout of it,

    python make_old_run.py OUT.tar.xz [--groups 40] [--batch 2]

Commit 439044d made old_run.tar.xz (schema 1), f4ac234 made old_run_schema_2.tar.xz, f66a8f8 made
old_run_schema_3.tar.xz, the only one with a node's home: alice's, who stopped in the middle of her work.

A real coordinator and real nodes work on an in-memory network (tests/support/swarm.py). The run stops halfway: with
accepted, refused and expired groups, a banned node, open leases, and a learner that has drawn some groups. Beside the
folder `run` the archive has `learner.json`, which stands for the learner's checkpoint. Every 32 versions the learner
makes a diff from version 0, as the real one does, so that a node can join a long run.
"""

import argparse
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import anyio
import msgspec

sys.path.insert(0, str(Path.cwd()))

from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.p2p.identity import load_or_create_key
from echo2.weights.diff import encode
from echo2.weights.snapshot import Snapshot
from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.swarm import BigramLearner, Swarm, accepted, make_swarm, working


def third(leases: Any) -> int:
    """Return the index of the fourth prompt, on which the scorer will fail; each commit stores its prompts
    elsewhere."""
    prompts = leases._prompts if hasattr(leases, "_prompts") else leases.positions.prompts
    return int(prompts.at(3).index)


def ban(coordinator: Any, node: bytes, now: int) -> None:
    """Ban a key with the code of the commit that runs this file."""
    if hasattr(coordinator.books.roster, "ban"):
        coordinator.books.roster.ban(node, "made for a test", now)
    else:
        coordinator.books.accounts.remark(node, "node.banned", "made for a test", now)


DROPPED = ("logs", "lock", "run.sqlite.lock", "run.sqlite-wal", "run.sqlite-shm")


ANCHOR_EVERY = 32


class AnchoredLearner(BigramLearner):
    """The learner of the tests, with a diff from version 0 every `ANCHOR_EVERY` versions."""

    def _write(self, version: int) -> Export:
        export = super()._write(version)
        if version % ANCHOR_EVERY or version == 0:
            return export
        old, new = Snapshot(self._folder / "v0.safetensors"), Snapshot(Path(export.snapshot))
        payload = self._folder / f"v{version}-anchor.edge"
        encode(old, new, payload)
        edge = ExportedEdge(base=0, base_root=old.root, payload=str(payload))
        return msgspec.structs.replace(export, edges=[*export.edges, edge])


async def life(swarm: Swarm, groups: int) -> None:
    """Work until `groups` groups are accepted; then end with open leases."""
    async with swarm.coordinating() as coordinator:
        leases = coordinator.books.leases
        swarm.scorer.poisoned = {third(leases)}
        lost = swarm.node("lost")
        async with working(lost):
            await until(lambda: accepted(lost) >= 2, 600)
        await anyio.sleep(400)  # its lease expires
        alice = swarm.folder / "alice"
        nodes = [swarm.node("alice", key=load_or_create_key(alice / "node.key")), swarm.node("bob")]
        (alice / "invite").write_text(swarm.invite().to_text())
        async with working(*nodes):
            await until(lambda: sum(map(accepted, nodes)) >= groups, 100_000)
        banned = coordinator.books.database.value("SELECT key FROM nodes ORDER BY first_seen LIMIT 1")
        ban(coordinator, banned, int(anyio.current_time() * 1000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--batch", type=int, default=2, help="groups of a step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        swarm = make_swarm(Path(folder), batch_groups=options.batch, staleness=4)
        swarm.learner = AnchoredLearner(Path(folder) / "learner")
        run_fake(lambda: life(swarm, options.groups))
        learner = {"step": swarm.learner.step_number, "drawn": [one.hex() for one in swarm.learner.drawn]}
        with tarfile.open(options.out, "w:xz", preset=9) as archive:
            archive.add(Path(folder) / "run", "run", filter=lambda one: None if one.name.endswith(DROPPED) else one)
            archive.add(Path(folder) / "alice", "alice", filter=lambda one: None if one.name.endswith(DROPPED) else one)
            for name in (f"v{swarm.learner.step_number}.safetensors",):
                archive.add(Path(folder) / "learner" / name, f"learner/{name}")
            data = json.dumps(learner).encode()
            entry = tarfile.TarInfo("learner.json")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    print(f"{options.out}: {options.out.stat().st_size:,} bytes, step {learner['step']}")


if __name__ == "__main__":
    main()
