"""The delivery of the outbox: restarts, later Roots, verdicts."""

import asyncio
import itertools
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from structlog.testing import capture_logs

from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.rollouts import outbox_relay
from echo2.node.rollouts.accepted_tally import LATE_IN_ROW
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.outbox_relay import OutboxRelay
from echo2.p2p.envelope import decode_unverified, document_hash, seal
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Receipt, VerdictsRequest, VerdictsResponse
from echo2.protocol.methods import SUBMIT
from echo2.protocol.requests import Refusal
from echo2.runtime.units import DAY
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, Keys, until
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_a_restarted_node_goes_on_where_it_was_and_resubmits_the_same_bytes(
    small_run: SmallRun, tmp_path: Path
) -> None:
    coordinator = small_run.coordinator
    key = generate_key()
    async with small_run.serving():
        await coordinator.publish(1)
        node = small_run.node(key=key)
        coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=100)
        async with working(node):
            await until(lambda: node.daemon.rollouts.done >= 2)
        assert not coordinator.submitted
        with closing(sqlite3.connect(next((tmp_path / "node").rglob("outbox.sqlite")))) as stored:
            submissions = dict(stored.execute("SELECT lease, body FROM submissions").fetchall())
        assert len(submissions) >= 2
        del coordinator.refusals["submit"]
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: set(submissions) <= set(coordinator.submitted))
            assert {lease: coordinator.submitted[lease] for lease in submissions} == submissions
            assert again.daemon.engine.current.version == 1
            assert not {"step_by", "step_to"} & set(again.engine.log)
            await until(lambda: accepted(again) >= 2)


@on_fake_clock
@pytest.mark.slow
async def test_a_receipt_from_before_a_change_of_the_ledger_key_is_final(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    key = generate_key()
    async with small_run.serving():
        coordinator.refusals["verdicts"] = Refusal(code="paused", sentence="not now", retry_after=100)
        async with working(small_run.node(key=key)):
            await until(lambda: len(coordinator.submitted) >= 2)
        for lease, body in coordinator.submitted.items():
            coordinator.decided[lease] = coordinator.judge(coordinator.leases[lease], body)
        old = coordinator.keys
        coordinator.keys = Keys(root=old.root, policy=old.policy, channel=old.channel)
        coordinator.roots.append(coordinator.sealed_root(1, coordinator.keys, old.root))
        del coordinator.refusals["verdicts"]
        before = len(coordinator.submitted)
        again = small_run.node(key=key)
        async with working(again):
            await anyio.sleep(60)
            assert again.coordinator_client.lies == [], "the run's own receipts are taken for lies"
            assert accepted(again) >= before


def receipt(code: str, at: int, lease: bytes = bytes(16)) -> bytes:
    """A sealed Receipt of the group `b"group"`, accepted under a code, and not learned from."""
    stated = Receipt(
        run=bytes(32), node=bytes(32), lease=lease, era=1, version=1, submission_hash=document_hash(b"group"),
        verdict="accepted", code=code, reason=f"why {code}", trainable=False, weight=1, entry=3, entry_hash=bytes(32),
        at=at,
    )  # fmt: skip
    return seal("receipt", bytes(32), encode(stated), generate_key())


async def test_a_round_ends_although_the_outbox_is_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the round's record of what it has begun would grow for as long as a busy node works."""
    monkeypatch.setattr(outbox_relay, "MOST_BEGUN", 40)
    trusted = SimpleNamespace(open_kept=None, chain=[])
    clock = SimpleNamespace(local=lambda: 5)
    context: Any = SimpleNamespace(trust_store=SimpleNamespace(trusted=trusted, serial=0), clock=clock, seed=0)
    groups = itertools.count(1)
    with closing(Outbox(tmp_path / "outbox.sqlite", node=bytes(32), limit=1000)) as outbox:

        def queue() -> None:
            outbox.put(next(groups).to_bytes(16), b"group", 5)

        async def call(method: object, body: bytes) -> None:
            assert method is SUBMIT
            queue()
            raise RequestRefused(Refusal(code="late", sentence=""))

        client: Any = SimpleNamespace(busy=0, call=call, wait_until_connected=AsyncMock())
        relay = OutboxRelay(outbox, client, context)
        relay.on_answer(VerdictsRequest(leases=[]), VerdictsResponse(receipts=[], unknown=[]))
        queue()
        async with asyncio.timeout(60):
            assert await relay._round()
        assert outbox.unsent() == 1
        assert next(groups) == 42, "forty begun, each of which queued another one"


async def test_a_node_whose_groups_all_come_too_late_to_be_learned_from_is_told(tmp_path: Path) -> None:
    trusted = SimpleNamespace(open_kept=lambda sealed, kind: decode_unverified(sealed).payload, chain=[])
    clock = SimpleNamespace(local=lambda: 5)
    context: Any = SimpleNamespace(trust_store=SimpleNamespace(trusted=trusted, serial=0), clock=clock, seed=0)
    client: Any = SimpleNamespace()
    leases = [number.to_bytes(16) for number in range(LATE_IN_ROW)]
    with closing(Outbox(tmp_path / "outbox.sqlite", node=bytes(32), limit=9)) as outbox, capture_logs() as logged:
        relay = OutboxRelay(outbox, client, context)
        for lease in leases:
            outbox.put(lease, b"group", 5)
            relay._take_receipt(lease, receipt("ok", 5, lease))
    (told,) = [event for event in logged if event["event"] == "groups come too late"]
    assert (told["groups"], told["log_level"]) == (LATE_IN_ROW, "warning")


async def test_the_end_of_a_quarantine_is_learned_by_the_next_request_after_its_day(tmp_path: Path) -> None:
    clock = SimpleNamespace(local=lambda: clock.now, now=5)
    trusted = SimpleNamespace(open_kept=lambda sealed, kind: decode_unverified(sealed).payload, chain=[])
    context: Any = SimpleNamespace(trust_store=SimpleNamespace(trusted=trusted, serial=0), clock=clock, seed=0)
    client: Any = SimpleNamespace()
    with closing(Outbox(tmp_path / "outbox.sqlite", node=bytes(32), limit=9)) as outbox:
        relay = OutboxRelay(outbox, client, context)
        outbox.put(bytes(16), b"group", 5)
        outbox.take_receipt(bytes(16), receipt("quarantine", 5), trusted.open_kept, 5)
        outbox.mark_confirmed([bytes(16)])
        assert relay.question() is None
        clock.now = DAY
        for code in ("quarantine", "quarantine-unpaid"):  # the coordinator has not settled the day at first
            ask = relay.question()
            assert ask is not None
            assert ask.leases == [bytes(16)]
            relay.on_answer(ask, VerdictsResponse(receipts=[receipt(code, DAY)], unknown=[]))
            relay.release(ask)
        assert relay.question() is None
        assert [(row.code, row.reason) for row in outbox.rows()] == [("quarantine-unpaid", "why quarantine-unpaid")]


@on_fake_clock
async def test_a_coordinator_that_forgets_each_group_does_not_get_it_again_without_pause(small_run: SmallRun) -> None:
    """The node sent all its groups four times a second, signed acknowledgements or not."""
    coordinator = small_run.coordinator

    def forgetting(ask: VerdictsRequest) -> VerdictsResponse:
        return VerdictsResponse(receipts=[None] * len(ask.leases), unknown=ask.leases)

    known = coordinator.answer_verdicts
    coordinator.answer_verdicts = forgetting  # type: ignore[method-assign]
    async with small_run.working(engine=InProcessEngine(seconds=5.0)) as node:
        await anyio.sleep(10)
        before = coordinator.asked["submit"]
        await anyio.sleep(30)
        assert coordinator.asked["submit"] - before <= 60
        coordinator.answer_verdicts = known  # type: ignore[method-assign]
        await until(lambda: accepted(node) >= 6)
