"""The keeper of an ask, against the coordinator's own market on a fake clock."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.market.ask_keeper import POINTS, REFUSED_TRIES, AskKeeper
from echo2.node.market.ask_plan import LOOKS_PER_EPOCH
from echo2.node.trust.market_store import MarketStore
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import peer_id
from echo2.protocol.market import MarketRequest, MarketResponse
from echo2.protocol.requests import Refusal
from echo2.protocol.sealed_asks import BadAsk
from tests.support.clock import on_fake_clock
from tests.support.epoch_market import LONG, EpochMarket
from tests.support.fake_coordinator import wall

RUN, NODE = b"r" * 32, b"n" * 32
PEER = peer_id(NODE)
ASK = 120_000_000


@dataclass
class Machine:
    """A node's machine: its folder, and its clock, which may be off by `off` ms."""

    folder: Path
    market: EpochMarket
    off: int = 0
    salts: list[bytes] = field(default_factory=lambda: [bytes([n]) * 16 for n in range(99)])

    @asynccontextmanager
    async def keeper(self, text: str | None, seed: int = 1) -> AsyncIterator[AskKeeper]:
        """Run a keeper until the block ends. A later one on the same machine is the same node, started again."""
        spec = SimpleNamespace(value=SimpleNamespace(currency=self.market.currency))
        context: Any = SimpleNamespace(
            run=RUN, node=NODE, seed=seed, clock=SimpleNamespace(now=lambda: wall() + self.off),
            trust_store=SimpleNamespace(trusted=SimpleNamespace(runspec=spec)),
        )  # fmt: skip
        with closing(MarketStore(self.folder / "market.sqlite")) as store:
            keeper = AskKeeper(context, self._call, store, text, salt=lambda: self.salts.pop(0))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keeper.run)
                yield keeper
                tasks.cancel_scope.cancel()

    async def _call(self, request: MarketRequest) -> MarketResponse:
        return self.market.answer(PEER, request)


@asynccontextmanager
async def machine(folder: Path, **settings: Any) -> AsyncIterator[Machine]:
    """A machine beside a market whose epochs go on until the block ends."""
    market = EpochMarket(RUN, wall, **settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(market.run)
        await anyio.sleep(0.001)
        yield Machine(folder, market)
        tasks.cancel_scope.cancel()


@on_fake_clock
async def test_an_ask_is_sealed_then_opened_and_stands_from_the_next_epoch_on(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12/h") as keeper:
        await anyio.sleep(LONG / 1000)
        assert list(one.market.asks()) == [ASK]
        assert one.market.book.state.asks == {PEER: ASK}
        await anyio.sleep(10 * LONG / 1000)
        assert len(one.market.sent("sealed")) == 1
        assert keeper.latest is not None
        assert (keeper.latest.answer.ask, keeper.trouble) == (ASK, "")


@on_fake_clock
async def test_a_node_asks_once_per_epoch_while_its_ask_stands(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12/h"):
        await anyio.sleep(2.5 * LONG / 1000)
        before = len(one.market.requests)
        await anyio.sleep(8 * LONG / 1000)
        assert 7 <= len(one.market.requests) - before <= 9


@on_fake_clock
async def test_an_ask_that_rises_by_more_than_a_quarter_comes_step_by_step(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12/h") as keeper:
        await anyio.sleep(1.5 * LONG / 1000)
        keeper.want("0.20/h")
        await anyio.sleep(4 * LONG / 1000)
        assert list(one.market.asks()) == [ASK, 150_000_000, 187_500_000, 200_000_000]


@on_fake_clock
async def test_an_ask_falls_at_once_and_no_ask_leaves_the_standing_one(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12/h") as keeper:
        await anyio.sleep(1.5 * LONG / 1000)
        keeper.want("0.01/h")
        await anyio.sleep(1.5 * LONG / 1000)
        keeper.want(None)
        await anyio.sleep(3 * LONG / 1000)
        assert list(one.market.asks()) == [ASK, 10_000_000]


@on_fake_clock
async def test_a_restart_between_sealing_and_opening_opens_the_same_ask(tmp_path: Path) -> None:
    async with machine(tmp_path) as one:
        async with one.keeper("0.12/h"):
            while not one.market.sent("sealed"):  # noqa: ASYNC110
                await anyio.sleep(0.1)
        async with one.keeper("0.01/h", seed=2):
            await anyio.sleep(LONG / 1000)
            assert list(one.market.asks()) == [ASK]
            await anyio.sleep(LONG / 1000)
            assert list(one.market.asks()) == [ASK, 10_000_000]


@on_fake_clock
async def test_a_restart_before_the_commitment_arrived_sends_that_one_again(tmp_path: Path) -> None:
    async with machine(tmp_path) as one:
        one.market.loses = "sealed"
        async with one.keeper("0.12/h"):
            await anyio.sleep(2)
        one.market.loses = ""
        async with one.keeper("0.01/h", seed=2):
            await anyio.sleep(0.4 * LONG / 1000)
            assert len({request.sealed for request in one.market.sent("sealed")}) == 1
            assert list(one.market.asks()) == [ASK]


@on_fake_clock
async def test_the_salt_is_on_disk_before_the_commitment_is_sent(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12/h"):
        while not one.market.sent("sealed"):  # noqa: ASYNC110
            await anyio.sleep(0.1)
        with closing(MarketStore(tmp_path / "market.sqlite")) as store:
            stored = store.ask_for(1)
        assert stored is not None
        assert (stored.hash, stored.salt) == (one.market.sent("sealed")[0].sealed, bytes(16))
    assert (tmp_path / "market.sqlite").stat().st_mode & 0o777 == 0o600


@on_fake_clock
async def test_two_daemons_on_one_key_are_told_and_the_ask_before_stands(tmp_path: Path) -> None:
    async with machine(tmp_path / "a") as one:
        other = Machine(tmp_path / "b", one.market, salts=[b"x" * 16] * 99)
        async with one.keeper("0.12/h") as first, other.keeper("0.13/h", seed=9) as second:
            await anyio.sleep(0.1 * LONG / 1000)
            troubles = [keeper.trouble for keeper in (first, second)]
            assert sum("another daemon works with the same key" in trouble for trouble in troubles) == 1
            assert len(one.market.sent("sealed")) <= 2


@pytest.mark.parametrize("off", [-400 * LONG, -LONG // 3, LONG // 3, 400 * LONG])
def test_a_clock_that_is_wrong_costs_no_more_than_some_epochs(tmp_path: Path, off: int) -> None:
    async def story() -> None:
        async with machine(tmp_path) as one:
            one.off = off
            async with one.keeper("0.12/h"):
                await anyio.sleep(6 * LONG / 1000)
                assert len(one.market.requests) <= 7 * (LOOKS_PER_EPOCH + 2 * REFUSED_TRIES + 2)
                one.off = 0
                await anyio.sleep(4 * LONG / 1000)
                assert one.market.book.state.asks == {PEER: ASK}

    on_fake_clock(story)()


@on_fake_clock
async def test_a_clock_that_is_somewhat_ahead_costs_no_epoch(tmp_path: Path) -> None:
    async with machine(tmp_path) as one:
        one.off = one.market.window // 3
        async with one.keeper("0.12/h"):
            await anyio.sleep(1.1 * LONG / 1000)
            assert one.market.book.state.asks == {PEER: ASK}


@on_fake_clock
async def test_a_clock_that_jumps_between_sealing_and_opening_costs_no_epoch(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12/h"):
        while not one.market.sent("sealed"):  # noqa: ASYNC110
            await anyio.sleep(0.1)
        one.off = -24 * 3_600_000
        await anyio.sleep(0.9 * LONG / 1000)
        one.off = 0
        await anyio.sleep(2 * LONG / 1000)
        assert one.market.book.state.asks == {PEER: ASK}


@on_fake_clock
async def test_a_refused_ask_is_tried_a_few_times_and_said(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12/h") as keeper:
        one.market.book.state.asks[PEER] = ASK
        keeper.want("0.15/h")
        await anyio.sleep(0.5)
        one.market.book.state.asks[PEER] = 1_000_000  # the run has forgotten what it told
        await anyio.sleep(0.39 * LONG / 1000)
        assert "did not take the ask for epoch 1: an ask rises by at most 25 %" in keeper.trouble
        assert set(one.market.asks()) == {150_000_000}
        assert len(list(one.market.asks())) <= REFUSED_TRIES


@on_fake_clock
async def test_a_run_that_takes_an_ask_and_forgets_it_is_not_asked_without_a_pause(tmp_path: Path) -> None:
    async with machine(tmp_path) as one:
        honest = one.market.answer

        def forgetful(node: str, request: MarketRequest) -> MarketResponse:
            answer = honest(node, MarketRequest())
            one.market.requests[-1] = (wall(), request)
            return answer

        one.market.answer = forgetful  # type: ignore[method-assign]
        async with one.keeper("0.12/h"):
            await anyio.sleep(LONG / 1000)
            assert 1 < len(one.market.requests) < 60


def test_an_answer_of_another_version_counts_as_none(tmp_path: Path) -> None:
    with closing(MarketStore(tmp_path / "market.sqlite")) as store:
        store.put_answer(MarketResponse(currency="USD", coming=None, running=None), 1)
        assert store.newest() is not None
        with closing(sqlite3.connect(tmp_path / "market.sqlite", isolation_level=None)) as database:
            database.execute("UPDATE answers SET answer = ?", (b"\x80",))
        assert store.newest() is None


@on_fake_clock
async def test_a_run_that_pays_points_is_not_asked(tmp_path: Path) -> None:
    async with machine(tmp_path, currency="") as one, one.keeper("0.12/h") as keeper:
        await anyio.sleep(20 * POINTS)
        assert (one.market.requests, keeper.trouble) == ([], "")
        assert await keeper.ask_now() is None


@on_fake_clock
async def test_an_ask_in_another_currency_is_said_and_not_sent(tmp_path: Path) -> None:
    async with machine(tmp_path) as one, one.keeper("0.12 EUR/h") as keeper:
        await anyio.sleep(LONG / 1000)
        assert keeper.trouble == "ask: the run pays in USD, not in EUR: state the ask in USD"
        assert one.market.sent("sealed") == []
        with pytest.raises(BadAsk, match="not in EUR"):
            keeper.want("0.10 EUR/h")
        keeper.want("0.10/h")
        await anyio.sleep(2 * LONG / 1000)
        assert list(one.market.asks()) == [100_000_000]


@on_fake_clock
async def test_a_coordinator_that_is_away_or_refuses_is_asked_less_and_less_and_again(tmp_path: Path) -> None:
    busy = Refusal(code="busy", sentence="More nodes ask than can be answered.", retry_after=1000)
    for down, said in ((Unreachable("no route"), ""), (RequestRefused(busy), "More nodes ask")):
        async with machine(tmp_path / str(said)) as one, one.keeper("0.12/h") as keeper:
            one.market.down = down
            keeper.want("0.12/h")
            await anyio.sleep(30 * 60)
            assert len(one.market.requests) < 20
            assert said in keeper.trouble
            one.market.down = None
            await anyio.sleep(10 * 60)
            assert one.market.book.state.asks == {PEER: ASK}
            assert keeper.trouble == ""


@on_fake_clock
async def test_what_the_run_promised_stays_by_epoch(tmp_path: Path) -> None:
    async with machine(tmp_path) as one:
        async with one.keeper("0.12/h"):
            await anyio.sleep(4.5 * LONG / 1000)
        with closing(MarketStore(tmp_path / "market.sqlite")) as store:
            answers = [store.of_epoch(epoch) for epoch in (4, 5, 99)]
            newest = store.newest()
        assert [one.running.epoch for one in answers if one is not None and one.running is not None] == [4, 5]
        assert newest is not None
        assert newest.answer == answers[1]
