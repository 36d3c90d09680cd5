"""Nodes on hosts that have no route to the coordinator, or none but for HTTPS: they join, follow, work and are paid.

    hidden ── relay ── coordinator ── office

`relay` is a volunteer that offers to relay, and forwards no packet; `office` has a route to the address of the
coordinator's HTTPS and to no other. What this does not show is a router that translates addresses: that a hole can be
punched through a real one, and that its mapping stays open.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.lab import NotPermitted
from echo2.p2p.identity import load_or_create_key, peer_id, public_bytes
from echo2.runtime.exit_codes import Exit
from tests.faults.hosts import Hosts
from tests.faults.processes import PATIENCE, ROOT, Coordinator, Program, Volunteer, until
from tests.support.quick_disk import quick_folder

pytestmark = pytest.mark.slow

LINKS = [("relay", "coord"), ("hidden", "relay"), ("coord", "office")]
RELAY = ("/ip4/10.78.0.1/tcp/4001", "/ip4/10.78.1.2/tcp/4001")
"""Where the relay is, for the coordinator and for the hidden host."""
COORDINATOR, HTTPS = "10.78.0.2", "10.78.2.1"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        with Hosts(LINKS, alone=["island"]).up() as running_hosts:
            yield running_hosts
    except NotPermitted as refused:
        pytest.skip(f"no network namespaces here: {refused}")


class World:
    """The coordinator and three volunteers, each on its host."""

    def __init__(self, template: Path, folder: Path, hosts: Hosts) -> None:
        self.hosts = hosts
        self.relay, self.hidden, self.office = (Volunteer(folder, name) for name in ("relay", "hidden", "office"))
        self.relay.env["ECHO2_RELAY"] = "true"
        self.relay.home.mkdir()
        relay = peer_id(public_bytes(load_or_create_key(self.relay.home / "node.key", None)))
        self.coordinator = Coordinator(template, folder)
        self.coordinator.env |= {
            "ECHO2_COORD_NETWORK_LISTEN": json.dumps([f"/ip4/{COORDINATOR}/tcp/4310"]),
            "ECHO2_COORD_NETWORK_RELAYS": json.dumps([f"{address}/p2p/{relay}" for address in RELAY]),
            "ECHO2_COORD_HTTPS_LISTEN": json.dumps([f"/ip4/{HTTPS}/tcp/4311"]),
            # Steps so large that the learner wants more than three nodes make. Where two fill its buffer, several small
            # versions a second come, and only who holds the newest has a lease: never the one whose way is slow.
            "ECHO2_COORD_RUN_BATCH_GROUPS": "16",
        }
        for name, program in (("coord", self.coordinator), *((one.name, one) for one in self.volunteers)):
            program.within = hosts.within(name)

    @property
    def volunteers(self) -> list[Volunteer]:
        return [self.relay, self.hidden, self.office]

    @property
    def programs(self) -> list[Program]:
        return [*self.volunteers, self.coordinator]

    def invite(self) -> str:
        """Return the invite that the command prints."""
        return self.command(self.coordinator, "echo2.coordinator.cli", "invite", "--home", str(self.coordinator.home))

    def command(self, program: Program, *argv: str, code: int = 0) -> str:
        """Return the output of a command on a program's host, if it ends with this code."""
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), **program.env}
        done = subprocess.run(
            [*program.within, sys.executable, "-m", *argv],
            capture_output=True, timeout=PATIENCE, check=False, cwd=ROOT, env=env, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def world(template: Path, hosts: Hosts) -> Iterator[World]:
    with quick_folder() as folder:
        new_world = World(template, folder, hosts)
        try:
            new_world.coordinator.start()
            invite = new_world.invite()
            new_world.relay.start(invite, "--listen", "/ip4/0.0.0.0/tcp/4001")
            new_world.hidden.start(invite)
            new_world.office.start(invite)
            yield new_world
        finally:
            for program in new_world.programs:
                program.end()


def works(node: Volunteer) -> dict[str, Any]:
    """Wait until the node has followed a version over its route, and been credited; return its status."""
    until(f"{node.name} is credited", lambda: node.accepted() >= 2)
    until(f"{node.name} follows", lambda: len(node.versions()) >= 3)
    return node.ask("status")


def diagnosis(world: World, node: Volunteer) -> dict[str, dict[str, Any]]:
    """Return the rows of `doctor` on its host, by check."""
    rows = json.loads(world.command(node, "echo2.node.cli", "doctor", "--json", "--home", str(node.home)))
    return {row["check"]: row for row in rows}


def test_a_host_without_a_route_to_the_coordinator_works_through_a_relay(world: World) -> None:
    assert not world.hosts.reaches("hidden", COORDINATOR)
    assert not world.hosts.reaches("hidden", HTTPS)
    assert not world.hosts.reaches("coord", "10.78.1.1")
    said = works(world.hidden)
    assert said["way"] == "relay"
    assert said["received_bytes"] > 0
    diagnosed = diagnosis(world, world.hidden)
    assert (diagnosed["direct"]["verdict"], diagnosed["relay"]["verdict"]) == ("poor", "good")
    assert diagnosed["https"]["verdict"] == "poor"
    assert diagnosed["coordinator"]["found"] == "reached: relay"


def test_a_host_that_only_https_leads_out_of_works_over_it(world: World) -> None:
    assert not world.hosts.reaches("office", COORDINATOR)
    assert not world.hosts.reaches("office", "10.78.1.2")
    said = works(world.office)
    assert said["way"] == "https"
    assert said["received_bytes"] > 0
    assert diagnosis(world, world.office)["coordinator"]["found"] == "reached: https"


def test_the_volunteer_that_relays_works_meanwhile(world: World) -> None:
    assert works(world.relay)["way"] == "direct"


def goes_on(node: Volunteer) -> dict[str, Any]:
    """Wait for more accepted work of the node; return its status."""
    before = node.accepted()
    until(f"{node.name} is credited again", lambda: node.accepted() > before + 2)
    return node.ask("status")


def test_a_node_without_a_network_reports_it_and_continues_when_it_is_back(world: World) -> None:
    works(world.office)
    world.hosts.cut("office", 2)
    said = until("it is noticed", lambda: world.office.ask("status")["blocked"] or None)
    assert world.office.alive
    until("it is said", lambda: "unreachable" in world.office.ask("why")["blocked"] or None)
    world.hosts.cut("office", 2, back=True)
    assert goes_on(world.office)["way"] == "https", said


@pytest.mark.parametrize("name", ["hidden", "office"])
def test_a_node_whose_address_changes_goes_on_from_the_new_one(world: World, name: str) -> None:
    node, link, last, route = {"hidden": (world.hidden, 1, 1, "relay"), "office": (world.office, 2, 2, "https")}[name]
    works(node)
    world.hosts.move(name, link, f"10.78.{link}.{last}", f"10.78.{link}.7")
    goes_on(node)
    until(f"{name} has its line again", lambda: node.ask("status")["way"] == route)


def test_a_machine_without_any_network_is_told_what_to_do(world: World, tmp_path: Path) -> None:
    island = Volunteer(tmp_path, "island")
    island.within = world.hosts.within("island")
    said = world.command(
        island, "echo2.node.cli", "doctor", world.invite(), "--home", str(island.home), code=Exit.UNREACHABLE
    )
    assert "BAD  coordinator" in said
    assert "-> direct: allow outgoing TCP to" in said
    assert "-> coordinator: ask the operator whether it runs" in said
