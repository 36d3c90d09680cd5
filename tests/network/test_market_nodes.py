"""Nodes in a run that pays money, against the product's coordinator: their asks, their pay, and its proofs."""

import re
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.market.market_replay import market_of
from echo2.ledger.export_replay import replay
from echo2.node.config import NodeConfig
from echo2.node.control import payment_probe
from echo2.node.market import earnings
from echo2.node.market.earnings_sources import read
from echo2.node.rollouts import receipts
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.peer.peer import Peer
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, until
from tests.support.second_replayer import replayed_apart
from tests.support.swarm import make_swarm, wall, working

MARKET = {
    "enabled": True, "reserve": "1", "budget": "1000", "epoch_seconds": 60, "asks_seconds": 10, "least_need": 100_000,
    "run_off_seconds": 60,
}  # fmt: skip


def quoted(home: Path) -> str:
    """Return what `market quote` says while the coordinator works."""
    result = CliRunner().invoke(cli.app, ["market", "quote", "--home", str(home)])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def paid_epochs(node: Node) -> int:
    return len(node.daemon.ledger_store.epochs())


@pytest.mark.parametrize("market", [MARKET, None], ids=["money", "points"])
@on_fake_clock
async def test_a_stranger_learns_how_the_run_pays_before_it_joins(
    tmp_path: Path, market: dict[str, object] | None
) -> None:
    swarm = make_swarm(tmp_path, steps=4000, market=market)
    async with swarm.coordinating(), anyio.create_task_group() as tasks:
        invite, doctor = swarm.invite(), Peer(swarm.network.transport("doctor"), seed=1)
        tasks.start_soon(doctor.run)
        await doctor.ready()
        peer = await doctor.dial([f"/memory/0/p2p/{swarm.run.peer_id}"])
        told = await payment_probe.ask(doctor, peer, invite, int(wall() * 1000), patience=5)
        other = Invite(run=invite.run, root_hash=bytes(32), addresses=invite.addresses)
        unknown = await payment_probe.ask(doctor, peer, other, int(wall() * 1000), patience=5)
        tasks.cancel_scope.cancel()
    money = r"payments by \w+; least payment \d+\.\d\d USD, fee of the payee 0\.00 USD"
    said = money if market else "points, no money"
    assert re.fullmatch(said, told.actual), told.actual
    assert told.verdict == "good"
    assert unknown.actual.startswith("not known: "), "Roots of another run are believed"


@pytest.mark.slow
@on_fake_clock
async def test_nodes_with_asks_are_paid_by_epochs_and_prove_it_offline(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 60}, market=MARKET)
    alice, bob = swarm.node("alice", ask="0.10/h"), swarm.node("bob", ask="0.12 USD/h")
    idle = swarm.node("idle")
    async with swarm.coordinating(), working(alice, bob, idle):
        await until(lambda: min(paid_epochs(alice), paid_epochs(bob)) >= 2, 1800)
        assert "no ask of this node stands" in (await idle.daemon.commands.why({}))["blocked"]
        status = await alice.daemon.commands.status({})
        assert "the ask 0.10/h stands" in status["market"]
        assert "closed epochs spent" in quoted(tmp_path / "run")
        await alice.daemon.commands.market({})
        named = (await alice.daemon.commands.payee({"account": "alice at a bank"}))["payee"]
        assert named[0] == "in force: no account"
        assert "alice at a bank; until then the one in force is paid" in named[1]
        assert (await alice.daemon.commands.payee({}))["payee"] == named
        early = "\n".join((await idle.daemon.commands.payee({"account": "idle at a bank"}))["payee"])
        assert "payments by csv; least payment 5.00 USD, fee of the payee 0.00 USD" in early
        assert "is not taken yet" in early
        assert "tries again every hour" in early
    for node in (alice, bob):
        home = swarm.on_disk(node)
        checked = receipts.verify_receipts(home, None)
        assert checked.faults == []
        assert checked.epochs >= 2
        known = read(NodeConfig(home=home))
        paid = sum(own.accrued + own.unvested for own, _ in known.epochs)
        assert paid > 0
        assert any("per RE x" in row for row in earnings.lines(known, explain=True))
    market = read(NodeConfig(home=alice.home)).market
    assert market.answer.accrued + market.answer.unvested + market.answer.payable > 0
    export(RunFolder(tmp_path / "run"), tmp_path / "export", market_of=market_of)
    replayed = replay(tmp_path / "export", market_of)
    assert replayed.compared
    assert replayed.state.market is not None
    assert replayed_apart(tmp_path / "export") == replayed.state.as_bytes()
