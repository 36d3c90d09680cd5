"""What a node shows of its work, and what others see of it: `status --share`, `privacy`, rank and points."""

from typing import Any

import pytest
from typer.testing import CliRunner

from echo2.node import cli
from echo2.node.config import NodeConfig, home_file
from echo2.node.control import privacy_report
from echo2.node.control.share_report import share_of
from echo2.node.errors import BadConfig, TryLater
from echo2.p2p.wire_types import decode
from echo2.protocol.requests import Hello
from echo2.runtime.exit_codes import Exit
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.node_status import STATUS
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted


def test_a_node_shares_its_part_of_the_page_and_its_badge() -> None:
    shared = share_of(STATUS)
    assert shared["page"] == STATUS["permalink"]
    assert shared["badge"] == f"{STATUS['permalink']}.svg"
    assert shared["markdown"] == f"[![echo2]({shared['badge']})]({shared['page']})"


def test_a_run_without_a_page_or_an_unknown_one_has_nothing_to_share() -> None:
    with pytest.raises(BadConfig, match="names no page"):
        share_of({**STATUS, "permalink": ""})
    with pytest.raises(TryLater, match="has not answered"):
        share_of({**STATUS, "run": None, "permalink": None})


@on_fake_clock
async def test_points_rank_and_page_are_told_once_there_is_accepted_work(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    coordinator.runspec = coordinator.sealed_runspec(page="https://run.example.org/")
    async with small_run.working() as node:
        assert (await node.daemon.commands.status({}))["points"] == 0
        await until(lambda: accepted(node) >= 2 and node.daemon.own_rank.words(), 120)
        status = await node.daemon.commands.status({})
        assert (status["points"], status["rank"]) == (float(accepted(node)), "1 of 1")
    assert status["permalink"] == f"https://run.example.org/nodes/{status['node']}"
    (row,) = status["engines"]
    assert row["rate"] > 0
    assert row["leases"] >= 2


@on_fake_clock
async def test_a_node_that_is_forgotten_greets_without_name_team_and_device(small_run: SmallRun) -> None:
    hellos, hello = list[Hello](), small_run.coordinator.hello

    def note(node: bytes, body: bytes) -> Any:
        hellos.append(decode(body, Hello))
        return hello(node, body)

    small_run.coordinator.hello = note  # type: ignore[method-assign]
    async with small_run.working(team="foxes", show_hardware=True) as node:
        await until(lambda: node.coordinator_client.peer)
        seen = await node.daemon.commands.privacy({"forget": True})
        await until(lambda: hellos[-1].team == "")
    assert (hellos[0].team, hellos[0].device) == ("foxes", "a table")
    assert (hellos[-1].device, hellos[-1].name) == ("cpu", node.peer_id[-8:])
    assert (seen["device"], seen["team"]) == ("cpu", "")


def test_what_is_public_and_what_the_operator_sees_is_said() -> None:
    seen = {
        "name": "fox",
        "team": "",
        "device": "RTX 4090",
        "software": "echo2/0.1",
        "reached": "directly, at /ip4/1.2.3.4/tcp/5",
    }
    rows = privacy_report.lines(NodeConfig(uplink=4), {**STATUS, "engine": None}, seen)
    assert "  device  RTX 4090 (setting show_hardware)" in rows
    early = privacy_report.lines(NodeConfig(), {**STATUS, "engine": None}, {**seen, "device": ""})
    assert "  device  not known yet (setting show_hardware)" in early
    assert "  address the one from which it connects; peers reach it directly, at /ip4/1.2.3.4/tcp/5" in rows
    assert "  work    118 groups accepted, 3 refused with reasons, 118.25 points" in rows


def test_forgetting_without_a_node_counts_from_its_next_start(tmp_path: Any) -> None:
    done = CliRunner().invoke(cli.app, ["privacy", "forget", "--home", str(tmp_path)])
    assert done.exit_code == Exit.OK
    assert "at the next start of the node" in done.stdout
    assert "show_hardware = false" in home_file(tmp_path).read_text()


def test_the_old_key_ends_only_once_its_owner_agrees(tmp_path: Any) -> None:
    from echo2.p2p.identity import generate_key, write_key

    write_key(tmp_path / "node.key", generate_key(), None)
    before = (tmp_path / "node.key").read_bytes()
    for answer, code, said in (("n\n", Exit.CONFIG, "the key is not replaced"), ("", Exit.CONFIG, "add --yes")):
        done = CliRunner().invoke(cli.app, ["keys", "rotate", "--home", str(tmp_path)], input=answer)
        assert (done.exit_code, said in done.stderr) == (code, True)
        assert (tmp_path / "node.key").read_bytes() == before
    done = CliRunner().invoke(cli.app, ["keys", "rotate", "--home", str(tmp_path)], input="y\n")
    assert done.exit_code == Exit.OK
    assert (tmp_path / "node.key").read_bytes() != before
