"""A coordinator and a node on two hosts with IPv6 alone: no IPv4 address at all, not even 127.0.0.1.

The node is at fd78::2, the coordinator at fd78::1.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.lab import NotPermitted
from echo2.runtime.exit_codes import Exit
from tests.faults.hosts import Hosts
from tests.faults.processes import PATIENCE, ROOT, Coordinator, Program, Volunteer, until
from tests.support.quick_disk import quick_folder

pytestmark = pytest.mark.slow

COORDINATOR, NODE = "fd78::1", "fd78::2"
BOTH = ["/ip4/0.0.0.0/tcp/{port}", "/ip6/::/tcp/{port}"]
"""The default of a coordinator."""


class World:
    """The coordinator and a volunteer, each on its host, with the settings that they have by default."""

    def __init__(self, template: Path, folder: Path, hosts: Hosts) -> None:
        self.hosts = hosts
        self.coordinator = Coordinator(template, folder)
        self.coordinator.env |= {
            "ECHO2_COORD_NETWORK_LISTEN": json.dumps([one.format(port=4310) for one in BOTH]),
            "ECHO2_COORD_HTTPS_LISTEN": json.dumps([one.format(port=4311) for one in BOTH]),
        }
        self.coordinator.within = hosts.within("coord")
        self.node = self.volunteer(folder, "ann")
        self.page = f"http://[{COORDINATOR}]:{self.coordinator.web}"

    def volunteer(self, folder: Path, name: str, via: str | None = None) -> Volunteer:
        """Return a volunteer on the other host, not started yet. `via`: its only route."""
        volunteer = Volunteer(folder, name, listen="", via=via)
        volunteer.within = self.hosts.within("node")
        return volunteer

    def read(self, path: str) -> str:
        """Read a part of the page on the node's host; empty while it is not there."""
        program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
        argv = [*self.node.within, sys.executable, "-c", program, self.page + path]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
        return done.stdout.strip()

    def command(self, program: Program, *argv: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run a command on a program's host, and check its exit code."""
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), **program.env}
        done = subprocess.run(
            [*program.within, sys.executable, "-m", *argv],
            capture_output=True, timeout=PATIENCE, check=False, cwd=ROOT, env=env, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def world(template: Path) -> Iterator[World]:
    try:
        with Hosts([("coord", "node")], ip6=True).up() as hosts, quick_folder() as folder:
            new_world = World(template, folder, hosts)
            try:
                yield new_world
            finally:
                new_world.node.end()
                new_world.coordinator.end()
    except NotPermitted as refused:
        pytest.skip(f"no network namespaces here: {refused}")


def test_a_page_without_an_address_of_its_own_is_refused_in_one_sentence(world: World) -> None:
    """By default the page is at 127.0.0.1, which a host without IPv4 may lack."""
    world.coordinator.start()
    assert world.coordinator.wait() == Exit.CONFIG
    assert "web.host" in world.coordinator.last_words()


def test_a_node_joins_by_the_page_and_works(world: World) -> None:
    world.coordinator.env |= {"ECHO2_COORD_WEB_HOST": "::", "ECHO2_COORD_WEB_OPERATOR_LISTEN": "[::1]:0"}
    world.coordinator.start()
    asked = world.command(world.coordinator, "echo2.coordinator.cli", "invite", "--home", str(world.coordinator.home))
    until("the page serves the invite", lambda: world.read("/invite"))
    world.node.start(world.page, "--accept-fingerprint", asked.stderr.split()[-1])
    until("the node is credited", lambda: world.node.accepted() >= 2)
    until("it follows", lambda: len(world.node.versions()) >= 3)
    assert world.node.ask("status")["way"] == "direct"


def test_the_page_shows_its_work(world: World) -> None:
    state = json.loads(world.read("/api/v1/run"))
    assert [row["name"] for row in state["nodes"]] == ["ann"]
    shown = world.command(world.coordinator, "echo2.coordinator.cli", "status", "--home", str(world.coordinator.home))
    assert "ann" in shown.stdout


def test_doctor_finds_each_route_good(world: World) -> None:
    done = world.command(world.node, "echo2.node.cli", "doctor", "--json", "--home", str(world.node.home))
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert rows["IPv6"]["found"] == NODE
    assert {name: rows[name]["verdict"] for name in ("names", "tcp", "direct", "https", "coordinator", "clock")} == {
        "names": "good", "tcp": "good", "direct": "good", "https": "good", "coordinator": "good", "clock": "good",
    }  # fmt: skip
    assert COORDINATOR in rows["direct"]["found"]


def test_a_node_that_only_https_leads_out_of_works_too(world: World, tmp_path: Path) -> None:
    bob = world.volunteer(tmp_path, "bob", via="https")
    try:
        invite = world.command(
            world.coordinator, "echo2.coordinator.cli", "invite", "--home", str(world.coordinator.home)
        )
        bob.start(invite.stdout.strip())
        until("it is credited", bob.accepted)
        assert bob.ask("status")["way"] == "https"
    finally:
        bob.end()
