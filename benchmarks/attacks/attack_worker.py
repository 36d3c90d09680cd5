"""Honest nodes, or attackers, in a process of their own: `python -m benchmarks.attacks.attack_worker`.

With `--engine` the engine is loaded first; else where an attack uses it. The first line on stdin is an `Order`; the
process works until stdin ends. Honest nodes answer each later line with their figures. Attackers answer the order with
`Ready`, then try the attack whose sentence each line holds, and answer with its `AttackTried`. Floods run at a low
priority: attackers have machines of their own, and their computing must not slow honest nodes.
"""

import importlib
import os
import sys
import time
from contextlib import suppress
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.catalogue import ATTACKS
from benchmarks.attacks.engine_place import EnginePlace, Order

ENGINE: Final = "--engine"
PARTIES: Final = 50
"""Most subnets of an attack."""
LONGEST: Final = 90.0
"""Seconds after which an attack that should end by itself is given up."""


class Try(msgspec.Struct, frozen=True):
    """The order to try an attack. `quick`: for the shorter time."""

    sentence: str
    quick: bool


class AttackTried(msgspec.Struct, frozen=True, kw_only=True):
    """An attack that was tried. `cpu`: seconds of this process. `sent`, `received`: bytes. `seconds`: by the clock."""

    finding: AttackFinding
    cpu: float
    sent: int
    received: int
    seconds: float


class Ready(msgspec.Struct, frozen=True):
    """The attackers have loaded what they need, and wait for an attack."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Honest nodes so far: their keys, their requests, and how many of those had no answer."""

    keys: list[bytes]
    requests: int
    unanswered: int


async def try_attack(order: Order, command: Try, number: int) -> AttackTried:
    """Try an attack in a place of its own, whose connections end with it. `number`: of the attacks so far."""
    attack = ATTACKS[command.sentence]
    action, began, cpu = attack.make(), time.monotonic(), time.process_time()
    async with anyio.create_task_group() as tasks:
        place = EnginePlace(order, tasks, PARTIES * (2 * number + (order.niceness > 0)))
        place.look()
        tasks.start_soon(place.follow)
        lasting = attack.lasting(command.quick)
        with anyio.move_on_after(LONGEST if lasting is None else lasting) as scope:
            await action.run(place)
        finding = action.finding(place)
        if lasting is None and scope.cancelled_caught:
            finding = msgspec.structs.replace(
                finding, prevented=False, note=f"no end within {LONGEST:.0f} s; {finding.note}"
            )
        counts = place.asked()
        tasks.cancel_scope.cancel()
    return AttackTried(
        finding=finding,
        cpu=time.process_time() - cpu,
        sent=int(counts["sent"]),
        received=int(counts["received"]),
        seconds=time.monotonic() - began,
    )


async def attack_on_order(order: Order) -> None:
    """Try the attacks that stdin names, one after the other."""
    os.nice(order.niceness)
    _answer(Ready())
    number = 0
    while text_line := await anyio.to_thread.run_sync(sys.stdin.buffer.readline):
        _answer(await try_attack(order, msgspec.json.decode(text_line, type=Try), number))
        number += 1


async def work(order: Order) -> None:
    """Work honestly; answer each line on stdin with the figures so far."""
    async with anyio.create_task_group() as tasks:
        place = EnginePlace(order, tasks)
        place.look()
        tasks.start_soon(place.follow)
        for seconds in order.nodes:
            tasks.start_soon(place.volunteer, seconds)
        while await anyio.to_thread.run_sync(sys.stdin.buffer.readline):
            counts = place.asked()
            _answer(
                Figures(
                    keys=[key.public for key in place.honest],
                    requests=int(counts["requests"]),
                    unanswered=int(counts["unanswered"]),
                )
            )
        tasks.cancel_scope.cancel()


def _answer(message: msgspec.Struct) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    if ENGINE in sys.argv:
        importlib.import_module("echo2.engines.transformers.engine")
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    anyio.run(work if order.nodes else attack_on_order, order, backend="trio")


if __name__ == "__main__":
    main()
