"""A whole daemon in a run that pays money, and in one that pays points."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from echo2.node.market import payee_file
from echo2.protocol.market import PayeeResponse
from echo2.protocol.refusals import refusal
from tests.support.clock import on_fake_clock
from tests.support.epoch_market import LONG, EpochMarket
from tests.support.fake_coordinator import Node, until, wall
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working

ASK = 120_000_000


PAYMENTS = PayeeResponse(rail="csv", currency="USD", minimum=5_000_000_000, fee=250_000_000)


@asynccontextmanager
async def paying(run: SmallRun, **settings: object) -> AsyncIterator[tuple[Node, EpochMarket]]:
    """A node at work in a run that pays dollars by epochs."""
    coordinator = run.coordinator
    market = EpochMarket(coordinator.run, wall)
    coordinator.on_market = market.answer
    coordinator.on_payee = lambda node, request: PAYMENTS
    coordinator.runspec = coordinator.sealed_runspec(price_mode="market", currency="USD")
    async with run.serving(), anyio.create_task_group() as tasks:
        tasks.start_soon(market.run)
        node = run.node(**settings)
        async with working(node):
            yield node, market
        tasks.cancel_scope.cancel()


@on_fake_clock
@pytest.mark.slow
async def test_a_daemon_seals_and_opens_the_owners_ask_and_shows_its_place(small_run: SmallRun) -> None:
    async with paying(small_run, ask="0.12/h") as (node, market):
        await until(lambda: market.book.state.asks, 2 * LONG / 1000)
        await anyio.sleep(LONG / 1000)
        status = await node.daemon.commands.status({})
        assert status["market"].endswith("the ask 0.12/h stands")
        assert accepted(node) > 0


@on_fake_clock
async def test_least_payment_and_fee_are_known_before_anything_is_earned(small_run: SmallRun) -> None:
    async with paying(small_run) as (node, _):
        await until(lambda: payee_file.read(node.daemon.context.folder).told is not None)
        assert payee_file.read(node.daemon.context.folder).lines() == [
            "in force: no account",
            "payments by csv; least payment 5.00 USD, fee of the payee 0.25 USD",
        ]
        assert small_run.coordinator.asked["payee"] == 1


@on_fake_clock
@pytest.mark.slow
async def test_another_ask_of_the_owner_is_taken_while_the_daemon_runs(small_run: SmallRun) -> None:
    async with paying(small_run, ask="0.12/h") as (node, market):
        await until(lambda: market.book.state.asks, 2 * LONG / 1000)
        assert await node.daemon.commands.ask({"text": "0.10/h"}) == {"ask": "0.10/h"}
        await until(lambda: 100_000_000 in market.book.state.asks.values(), 2 * LONG / 1000)


@on_fake_clock
async def test_a_node_that_stands_by_says_how_to_be_active_and_works_again_once_it_may(
    small_run: SmallRun,
) -> None:
    async with paying(small_run, ask="0.12/h") as (node, market):
        await until(lambda: accepted(node), LONG / 1000)
        market.lied[node.peer_id] = ("standby", 90_000_000)
        said = refusal("standby", epoch=1, rank=1, active_at="0.09", retry_after=5000)
        small_run.coordinator.refusals["lease"] = said
        await anyio.sleep(2.2 * LONG / 1000)
        why = await node.daemon.commands.why({})
        assert "standing by in epoch 2 at rank 1: with an ask of at most 0.09/h it would be active" in why["blocked"]
        assert "`echo2-node config set ask 0.09/h`" in why["blocked"]
        assert (await node.daemon.commands.status({}))["blocked"] == why["blocked"]
        before = accepted(node)
        del small_run.coordinator.refusals["lease"]
        await until(lambda: accepted(node) > before)


@on_fake_clock
async def test_a_node_without_an_ask_is_told_how_to_state_one(small_run: SmallRun) -> None:
    async with paying(small_run) as (node, market):
        small_run.coordinator.refusals["lease"] = refusal("no-ask", currency="USD", retry_after=5000)
        await anyio.sleep(LONG / 1000)
        assert "no ask of this node stands" in (await node.daemon.commands.why({}))["blocked"]
        assert (await node.daemon.commands.status({}))["market"].endswith("no ask stands")
        assert market.sent("sealed") == []


@on_fake_clock
async def test_in_a_run_of_points_an_ask_changes_nothing(small_run: SmallRun) -> None:
    async with small_run.working(ask="0.12/h") as node:
        await until(lambda: accepted(node) >= 2)
        assert {"market", "payee"}.isdisjoint(small_run.coordinator.asked)
        assert (await node.daemon.commands.status({}))["market"] == ""
        assert await node.daemon.commands.market({}) == {"currency": "", "market": ""}


@on_fake_clock
@pytest.mark.slow
async def test_a_coordinator_that_knows_no_market_costs_no_work(small_run: SmallRun) -> None:
    small_run.coordinator.runspec = small_run.coordinator.sealed_runspec(price_mode="market", currency="USD")
    async with small_run.working(ask="0.12/h") as node:
        await anyio.sleep(60)
        assert accepted(node) > 0
        assert "There is no method market." in (await node.daemon.commands.status({}))["market"]
        assert small_run.coordinator.asked["market"] < 8
