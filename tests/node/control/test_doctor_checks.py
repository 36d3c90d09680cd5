"""`echo2-node doctor`: each finding with its remedy, the exit code, and a look at a real network on loopback."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from node.config import NodeConfig
from node.control import doctor_checks
from node.control.doctor_checks import Attempt
from node.control.doctor_probes import examine
from p2p.discovery.invite import Invite
from p2p.discovery.messages import ReachableResponse
from p2p.envelope import seal
from p2p.identity import generate_key
from p2p.libp2p.threaded_network import ThreadedPeer
from p2p.limits.relay_quota import RelayLimits
from p2p.wire_types import encode
from protocol.versions import Head, HeadResponse
from runtime.exit_codes import Exit

ADDRESS = "/ip4/192.0.2.1/tcp/4310/p2p/c"
GOOD = Attempt(route="direct", address=ADDRESS, seconds=0.1)
DEAD = Attempt(route="direct", address=ADDRESS, trouble="no answer within 10 s")
OVER_HTTPS = Attempt(route="https", address="/dns4/c.example/tcp/4311/https/p2p/c", seconds=0.2)
SEEN = ReachableResponse(observed="203.0.113.5", ports=[])
NOW = 1_700_000_000_000

FINDINGS = {
    "an old Python": (doctor_checks.python((3, 10)), "bad", Exit.CONFIG, "install Python 3.11"),
    "this Python": (doctor_checks.python(), "good", 0, ""),
    "no libp2p": (doctor_checks.libp2p(False), "bad", Exit.CONFIG, "pip install --no-deps libp2p==0.8.1"),
    "less disk than allowed": (doctor_checks.disk("/h", 20 * 10**9, 50.0), "poor", 0, "disk = 16"),
    "no disk": (doctor_checks.disk("/h", 10**9, 50.0), "bad", Exit.TEMPORARY, "free space"),
    "a GPU that was asked for and is not there": (doctor_checks.gpu("cuda", ""), "bad", Exit.NO_DEVICE, "driver"),
    "no GPU where any device will do": (doctor_checks.gpu("auto", ""), "poor", 0, "the CPU works"),
    "a port that is taken": (doctor_checks.port([], "taken"), "bad", Exit.CONFIG, "--listen /ip4/0.0.0.0/tcp/4001"),
    "a clock that is behind": (doctor_checks.clock(NOW + 60_000, NOW), "bad", Exit.TEMPORARY, "timedatectl"),
    "a clock that is ahead": (doctor_checks.clock(NOW - 3_600_000, NOW), "bad", Exit.TEMPORARY, "timedatectl"),
    "a clock that agrees": (doctor_checks.clock(NOW - 59_000, NOW), "good", 0, ""),
    "an open port": (
        doctor_checks.reachable(ReachableResponse(observed="203.0.113.5", ports=[7]), [7], None),
        "good",
        0,
        "",
    ),
    "a closed port, with a relay": (doctor_checks.reachable(SEEN, [4001], None), "poor", 0, "forward TCP port 4001"),
    "a closed port, and no relay": (doctor_checks.reachable(SEEN, [], "full"), "poor", 0, "tcp/4001"),
    "nobody to ask": (doctor_checks.reachable(None, [], None), "good", 0, ""),
    "no invite": (doctor_checks.no_invite(), "poor", 0, "echo2-node doctor INVITE"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_has_its_verdict_its_exit_code_and_its_remedy(name):
    row, verdict, code, remedy = FINDINGS[name]
    assert (row.verdict, row.exit) == (verdict, code)
    assert remedy in row.remedy
    assert bool(row.remedy) == (verdict != "good")


def test_one_way_that_goes_is_enough():
    rows = {row.check: row for row in doctor_checks.routes([DEAD, OVER_HTTPS])}
    assert rows["direct"].verdict == "poor"
    assert "192.0.2.1 port 4310" in rows["direct"].remedy
    assert rows["https"].verdict == rows["coordinator"].verdict == "good"
    assert "names no such address" in rows["relay"].actual
    assert doctor_checks.exit_code(list(rows.values())) == Exit.OK


def test_no_way_at_all_ends_with_its_own_code():
    assert doctor_checks.exit_code(doctor_checks.routes([DEAD])) == Exit.UNREACHABLE
    assert doctor_checks.exit_code([doctor_checks.libp2p(False), *doctor_checks.routes([DEAD])]) == Exit.CONFIG, (
        "the first bad one"
    )


def test_the_table_names_each_remedy_below_the_findings():
    lines = doctor_checks.table(doctor_checks.routes([DEAD]))
    assert lines[0].startswith("poor direct")
    assert [text_line for text_line in lines if text_line.startswith("-> direct: allow outgoing TCP")]


async def examined(addresses: list[str], tmp_path: Path, **settings) -> dict[str, doctor_checks.Check]:
    config = NodeConfig(home=tmp_path / "home", listen=("/ip4/127.0.0.1/tcp/0",), disk=0.001, **settings)
    invite = Invite(run=bytes(32), root_hash=bytes(32), addresses=addresses)
    return {row.check: row for row in await examine(config, invite, running=False)}


async def test_a_coordinator_on_loopback_is_found_reached_asked_and_dials_back(tmp_path):
    key = generate_key()
    coordinator = ThreadedPeer(key, ["/ip4/127.0.0.1/tcp/0"], relay=RelayLimits())

    async def head(peer: str, data: bytes) -> bytes:
        import time

        now = time.time_ns() // 1_000_000
        sealed = encode(Head(
            era=1, version=0, version_hash=bytes(32), index_hash=bytes(32), step=0, sequence=1, addresses=[],
            root_serial=1, issued=now, expires=now + 1000,
        ))  # fmt: skip
        return encode(HeadResponse(head=seal("head", bytes(32), sealed, key)))

    coordinator.serve("head", head, limit=100)
    task = asyncio.create_task(coordinator.run())
    await coordinator.ready()
    dead = f"/ip4/127.0.0.1/tcp/1/p2p/{coordinator.peer_id}"
    rows = await examined([*await coordinator.addresses(), dead], tmp_path)
    assert rows["direct"].verdict == rows["coordinator"].verdict == "good"
    assert rows["clock"].actual == "agrees with the newest Head"
    assert "directly at 127.0.0.1" in rows["incoming"].actual
    assert not (tmp_path / "home").exists(), "it changes nothing"
    task.cancel()
    await asyncio.wait([task])


async def test_nobody_there_is_said_with_the_place_that_does_not_answer(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        number = closed.getsockname()[1]
        rows = await examined([f"/ip4/127.0.0.1/tcp/{number}/p2p/{ThreadedPeer(generate_key(), []).peer_id}"], tmp_path)
    assert rows["coordinator"].exit == Exit.UNREACHABLE
    assert f"127.0.0.1 port {number}" in rows["direct"].remedy


@pytest.mark.slow
def test_the_command_gives_json_without_an_invite_and_imports_no_torch(tmp_path):
    program = (
        "import sys; sys.argv = ['echo2-node', 'doctor', '--json', '--home', sys.argv[1]]\n"
        "from node.cli import app\n"
        "try: app()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "home")], capture_output=True, check=False)
    rows = json.loads(done.stdout)
    assert {"check", "found", "wanted", "remedy"} <= rows[0].keys()
    assert rows[-1]["check"] == "invite"
