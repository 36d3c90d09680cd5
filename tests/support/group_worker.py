"""A coordinator's loop in a process of its own, for test_group_service_kill.py: it prints its acknowledgements.

    python -m tests.support.group_worker FOLDER CHECKPOINT

Every line is one acknowledgement, flushed before the next act: `received LEASE HASH`, `receipt LEASE ENTRY WEIGHT`.
Drawn groups become durable in CHECKPOINT, as in the learner's checkpoint, before `step N` is printed.
"""

import json
import os
import secrets
import sys
from pathlib import Path

from protocol.leases import Lease, Receipt, Received
from tests.support.group_world import World, group, opened


def main(folder: Path, checkpoint: Path) -> None:
    kept = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "drawn": []}
    world = World(folder, entropy=secrets.token_bytes, batch_groups=2)
    world.group_service.database.do("PRAGMA synchronous = FULL")
    world.now += kept["step"] * 1_000
    world.group_service.start(world.now)
    step, drawn = kept["step"], [bytes.fromhex(one) for one in kept["drawn"]]
    world.learner_at(step)
    world.group_service.rebuild(drawn, world.at(step))
    print("started", flush=True)
    while True:
        for receipt in world.decide_all():
            acknowledge("receipt", receipt)
        batch = world.group_service.draw()
        if batch is not None:
            drawn += [g.id for g in batch]
            step += 1
            save(checkpoint, {"step": step, "drawn": [one.hex() for one in drawn]})
            print("step", step, *[g.id.hex() for g in batch], flush=True)
            world.learner_at(step)
            continue
        ask = world.ask(step, nonce=secrets.token_bytes(16))
        answer = world.group_service.lease(b"N" * 32, ask, world.now)
        if not isinstance(answer, bytes):
            world.now += 400_000  # so the leases expire that the last process left open
            world.group_service.tick(world.now)
            continue
        taken = world.submit(group(opened("lease", answer, Lease)), b"N" * 32)
        assert taken.received is not None
        acknowledge("received", opened("received", taken.received, Received))


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
    main(Path(sys.argv[1]), Path(sys.argv[2]))
