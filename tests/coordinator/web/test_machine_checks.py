"""`echo2-coord doctor`: this machine and its network, as far as it can see them."""

import asyncio
import contextlib
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import LinksView
from echo2.coordinator.run import setup
from echo2.coordinator.settings import computing, config
from echo2.coordinator.web import machine_checks
from echo2.coordinator.web.site import application, serve_web
from echo2.p2p.errors import Unreachable
from tests.support import pictures
from tests.support.fixed_run import FixedRun


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("/ip4/8.8.8.8/tcp/4310", True),
        ("/ip4/192.168.1.2/tcp/4310", False),
        ("/ip4/127.0.0.1/tcp/4310", False),
        ("/ip4/100.64.0.7/tcp/4310", False),
        ("/ip6/2606:4700::1/tcp/4310", True),
        ("/ip6/fd00::1/tcp/4310", False),
        ("/dns4/run.example.org/tcp/4311/tls/http", True),
        ("/dns4/localhost/tcp/4311", False),
        ("", False),
    ],
)
def test_public_addresses_are_told_from_private_ones(address: str, public: bool) -> None:
    assert machine_checks.is_public(address) == public


def test_an_invite_of_private_addresses_alone_is_warned_of() -> None:
    found = machine_checks.addresses(["/ip4/10.0.0.2/tcp/4310"], pictures.BUSY)
    assert "all 1 are private" in found.actual
    assert "network.advertise" in found.remedy
    assert not machine_checks.addresses(["/ip4/10.0.0.2/tcp/1", "/ip4/8.8.8.8/tcp/1"], None).remedy


def test_what_nodes_outside_have_shown_of_the_ports_is_said() -> None:
    reached = msgspec.structs.replace(pictures.BUSY, links=LinksView(open=3, outside=1_204))
    assert machine_checks.ports(reached).actual == "open: 1,204 connections came in from public addresses"
    relayed = [msgspec.structs.replace(node, route="relay") for node in pictures.NODES[:2]]
    by_relay = machine_checks.ports(msgspec.structs.replace(pictures.BUSY, nodes=relayed))
    assert by_relay.actual.endswith("nodes that come by a relay: 2")
    for unknown in (machine_checks.ports(pictures.BUSY), machine_checks.ports(None)):
        assert unknown.describe_finding().startswith("?   ")
    assert "`echo2-node doctor INVITE` on a machine elsewhere" in machine_checks.ports(pictures.BUSY).actual


@pytest.mark.parametrize(("free", "warned"), [(5_000_000_000, True), (200_000_000_000, False)])
def test_a_disk_that_will_not_do_is_warned_of(free: int, warned: bool) -> None:
    found = machine_checks.disk(Path("/run"), 48_000_000_000, lambda folder: free)
    assert "51.0 GB wanted" in found.actual
    assert bool(found.remedy) == warned


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (0, "0 B, at most 2 GB (store.rollout_bytes)"),
        (2_500_000_000, "2.5 GB, at most 2 GB (store.rollout_bytes); what is beyond it is needed"),
    ],
)
def test_the_bytes_of_stored_rollouts_stand_beside_their_bound(stored: int, said: str) -> None:
    assert machine_checks.rollouts(stored, 2 * 10**9).actual == said


@pytest.mark.parametrize(
    ("said", "words", "warned"), [("yes\n", "kept", False), ("no\n", "not kept", True), ("", "not known", False)]
)
def test_a_clock_without_a_time_server_is_warned_of(said: str, words: str, warned: bool) -> None:
    def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 0, said)

    found = machine_checks.clock(run)
    assert found.actual.startswith(words)
    assert bool(found.remedy) == warned


def test_a_system_without_the_command_is_not_warned_of() -> None:
    def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        raise FileNotFoundError

    assert machine_checks.clock(run).remedy == ""


async def test_the_page_is_looked_at_where_the_run_says_that_it_is() -> None:
    from anyio import to_thread

    site = await serve_web(application(FixedRun(pictures.BUSY)), "127.0.0.1", 0)
    try:
        run = bytes.fromhex(pictures.BUSY.run)
        own = await to_thread.run_sync(machine_checks.public_page, site.url, run)
        other = await to_thread.run_sync(machine_checks.public_page, site.url, bytes(32))
    finally:
        await site.stop()
    gone = await to_thread.run_sync(machine_checks.public_page, site.url, run)
    assert (own.remedy, "another run" in other.actual, "does not show it" in gone.actual) == ("", True, True)
    assert other.remedy
    assert gone.remedy
    assert machine_checks.public_page("", run).remedy == ""


def test_a_page_of_something_else_is_warned_of() -> None:
    assert "does not show it" in machine_checks.public_page("http://127.0.0.1:9", bytes(32)).actual


def test_a_scorer_that_does_not_keep_up_is_warned_of() -> None:
    busy = pictures.BUSY.capacity
    capacity = msgspec.structs.replace(busy, step_seconds=2.0, rollouts_per_step=100, verified=30.0)
    slow = msgspec.structs.replace(pictures.BUSY, capacity=capacity)
    assert "30 rollouts/s of 50 needed" in machine_checks.rates(slow).actual
    assert machine_checks.rates(slow).remedy
    two = msgspec.structs.replace(slow, capacity=msgspec.structs.replace(capacity, scorers=2))
    assert "; 2 scorers verify 30 rollouts/s" in machine_checks.rates(two).actual
    assert "not known" in machine_checks.rates(None).actual


def test_memory_that_will_not_do_is_warned_of(home: Path) -> None:
    settings, place = config.load(home / "coordinator.toml", env={}), RunFolder(home)
    enough = machine_checks.memory(place, settings, lambda: 8_000_000_000)
    assert enough.actual == "8.0 GB, and learner and scorer keep about 0.0 GB between steps"
    assert not enough.remedy
    assert machine_checks.memory(place, settings, lambda: 43).remedy, "2 weights take 44 bytes"
    learner = settings.learner.model_copy(update={"optimiser_state": "8bit"})
    coded = settings.model_copy(update={"learner": learner})
    assert not machine_checks.memory(place, coded, lambda: 33).remedy, "and 32.1 with moments in 8 bits"
    assert machine_checks.memory(place, coded, lambda: 32).remedy


def test_of_a_card_that_auto_takes_the_memory_is_that_of_the_card(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, place = config.load(home / "coordinator.toml", env={}), RunFolder(home)
    learner = settings.learner.model_copy(update={"device": "auto"})
    monkeypatch.setattr(computing, "automatic_device", lambda: ("cuda:1", "it has the most free memory"))
    for card, said in ((24 * 10**9, "the learner fits on cuda:1, which has 24.0 GB"), (0, "not known of cuda:1")):
        monkeypatch.setattr(machine_checks.learner_checks, "check_card", lambda model, settings, card=card: card)
        row = machine_checks.memory(place, settings.model_copy(update={"learner": learner}), lambda: 43)
        assert row.actual.startswith(said)
        assert row.remedy == ""


def test_a_task_whose_data_is_gone_is_warned_of(home: Path) -> None:
    settings, place = config.load(home / "coordinator.toml", env={}), RunFolder(home)
    _, _, _, spec = setup.read_documents(place)
    (task,) = setup.task_places(place, spec, settings.run)
    fine = machine_checks.data_of(task, settings)
    assert (fine.check, fine.remedy) == ("task reverse", "")
    assert "prompts in train" in fine.actual
    gone = machine_checks.data_of(task._replace(name="lost"), settings)
    assert "lost" in gone.actual
    assert gone.remedy


ODD_PAGES = {
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "an answer that breaks off": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
    "brackets without end": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000,
    "a list": b"HTTP/1.1 200 OK\r\n\r\n[]",
}


@pytest.mark.parametrize("why", ODD_PAGES)
async def test_whatever_answers_in_the_place_of_a_page_is_one_sentence(why: str) -> None:
    from anyio import to_thread

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ODD_PAGES[why])
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        seen = await to_thread.run_sync(machine_checks.public_page, url, bytes(32))
        with pytest.raises(Unreachable):
            await to_thread.run_sync(lambda: status.decode(status.fetch(url)))
    assert "does not show it" in seen.actual
    assert seen.remedy


async def test_a_page_whose_answer_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from anyio import to_thread

    left = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()
        left.set()

    monkeypatch.setattr(machine_checks, "ANSWER_SECONDS", 0.3)
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(20):
            seen = await to_thread.run_sync(machine_checks.public_page, url, bytes(32))
            await left.wait()
    assert "its answer does not end" in seen.actual
