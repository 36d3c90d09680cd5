"""A coordinator's loop in a process of its own, for test_group_service_kill.py: it prints its acknowledgements.

    python -m tests.support.group_worker FOLDER CHECKPOINT

Every line is one acknowledgement, flushed before the next act: `received LEASE HASH`, `receipt LEASE ENTRY WEIGHT`.
Some leases are canaries, and some are audited. Drawn groups become durable in CHECKPOINT, as in the learner's
checkpoint, before `step N` is printed. In each round a new node's lease may have a twin, and both nodes submit.
"""

import json
import os
import secrets
import sys
from pathlib import Path
from unittest import mock

from echo2.ledger import standing
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease, Receipt, Received
from tests.support.group_world import World, group, opened

QUICK = b"N" * 32


def main(folder: Path, checkpoint: Path) -> None:
    kept = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "drawn": []}
    world = World(folder, entropy=secrets.token_bytes, batch_groups=2, canaries=0.3, audits=0.5)
    world.group_service.database.do("PRAGMA synchronous = FULL")
    world.now += kept["step"] * 1_000
    world.group_service.start(world.now)
    step, drawn = kept["step"], [bytes.fromhex(one) for one in kept["drawn"]]
    world.learner_at(step)
    world.group_service.rebuild(drawn, world.at(step))
    print("started", flush=True)
    while True:
        decide(world)
        batch = world.group_service.draw(world.now)
        if batch is not None:
            drawn += [g.id for g in batch]
            step += 1
            save(checkpoint, {"step": step, "drawn": [one.hex() for one in drawn]})
            print("step", step, *[g.id.hex() for g in batch], flush=True)
            world.learner_at(step)
            continue
        if not take_round(world, step):
            world.now += 400_000  # so the leases expire that the last process left open
            world.group_service.tick(world.now)


def take_round(world: World, step: int) -> bool:
    """Let a new node bring two groups and have a third lease, whose twin another one may have; return whether any lease
    was given."""
    late = secrets.token_bytes(32)
    for _ in range(2):
        if (lease := ask(world, step, late)) is None:
            break
        submit(world, lease)
        decide(world)
    given = [lease for lease in [ask(world, step, late)] if lease is not None]
    while (lease := ask(world, step, QUICK)) is not None:
        given.append(lease)
    for one in reversed(given):
        submit(world, one)
    return bool(given)


def ask(world: World, step: int, node: bytes) -> Lease | None:
    request = world.ask(step, nonce=secrets.token_bytes(16))
    answer = world.group_service.lease(node, request, world.now, Origin(node.hex(), node.hex()))
    return opened("lease", answer, Lease) if isinstance(answer, bytes) else None


def decide(world: World) -> None:
    for receipt in world.decide_all():
        acknowledge("receipt", receipt)


def submit(world: World, lease: Lease) -> None:
    acknowledge("received", opened("received", world.submit(group(lease), lease.node), Received))


def acknowledge(word: str, document: Received | Receipt) -> None:
    facts = document.submission_hash.hex() if isinstance(document, Received) else f"{document.entry} {document.weight}"
    print(word, document.lease.hex(), facts, flush=True)


def save(path: Path, content: object) -> None:
    hidden = path.with_suffix(".tmp")
    with hidden.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)


if __name__ == "__main__":
    with mock.patch.object(standing, "PROVEN_AUDITED_GROUPS", 2):
        main(Path(sys.argv[1]), Path(sys.argv[2]))
