"""The former identity over real libp2p and HTTPS: its own key, one answer, an end."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from echo2.coordinator.run import keys_commands, setup
from echo2.coordinator.run.former_identity import MOST_FORMER_CONNECTIONS, answer_as, former_of
from echo2.coordinator.run.setup import Run
from echo2.p2p.errors import Unreachable
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.limits.party import Parties
from echo2.protocol.methods import HEAD
from echo2.protocol.versions import HeadRequest
from tests.faults.processes import free_port
from tests.support.run_folders import NOW, load

SEALED = b"the newest Head"


def moved(home: Path, libp2p: int, https: int) -> Run:
    """Return a run whose identity was replaced, with addresses for the former one."""
    keys_commands.change(home, "network", now=NOW, secret=None)
    run = load(home)
    config = run.config.model_copy(
        update={
            "network": run.config.network.model_copy(update={"former_listen": (f"/ip4/127.0.0.1/tcp/{libp2p}",)}),
            "https": run.config.https.model_copy(update={"former_listen": (f"/ip4/127.0.0.1/tcp/{https}",)}),
        }
    )
    return replace(run, config=config)


@pytest.mark.timeout(120)
async def test_it_answers_over_libp2p_and_https_under_its_own_key_until_its_end(home: Path) -> None:
    first = load(home)
    ports = free_port(), free_port()
    run = moved(home, *ports)
    former = former_of(run, NOW, None)
    assert former is not None
    assert run.https_pin == first.https_pin is not None
    started = time.monotonic()

    def now() -> int:
        return former.until - 8_000 + int((time.monotonic() - started) * 1000)

    async def head(client: ThreadedPeer | HttpsClient, addresses: list[str]) -> list[bytes]:
        task = asyncio.create_task(client.run())
        await client.ready()
        try:
            while True:
                try:
                    peer = await client.dial(addresses)
                    break
                except Unreachable:
                    await asyncio.sleep(0.1)
            assert peer == first.peer_id
            answer = await HEAD.ask(client, peer, HeadRequest(root_serial=1), timeout=10)  # type: ignore[arg-type]
            assert answer.head == SEALED
            return answer.roots
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    serving = asyncio.create_task(answer_as(former, run, lambda: SEALED, now, Parties()))
    own = peer_id(public_bytes(generate_key()))
    direct = await head(ThreadedPeer(generate_key(), []), [f"/ip4/127.0.0.1/tcp/{ports[0]}/p2p/{first.peer_id}"])
    https = await head(
        HttpsClient(own, run.https_pin or b""), [f"/ip4/127.0.0.1/tcp/{ports[1]}/https/p2p/{first.peer_id}"]
    )
    assert direct == https == [run.roots[1]]
    async with asyncio.timeout(30):
        await serving


@pytest.mark.timeout(60)
async def test_a_port_that_is_taken_ends_the_former_identity_alone(home: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    run = moved(home, port, free_port())
    former = former_of(run, NOW, None)
    assert former is not None
    async with server, asyncio.timeout(30):
        await answer_as(former, run, lambda: None, lambda: NOW, Parties())


@pytest.mark.timeout(60)
async def test_a_crowd_at_the_former_identity_has_few_descriptors(home: Path) -> None:
    run = moved(home, free_port(), port := free_port())
    former = former_of(run, NOW, None)
    assert former is not None
    serving = asyncio.create_task(answer_as(former, run, lambda: SEALED, lambda: NOW, Parties()))
    writers: list[asyncio.StreamWriter] = []
    ends: list[asyncio.Task[bytes]] = []
    try:
        async with asyncio.timeout(30):
            while len(writers) < MOST_FORMER_CONNECTIONS + 10:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:  # it does not listen yet
                    await asyncio.sleep(0.1)
                    continue
                writers.append(writer)
                ends.append(asyncio.create_task(reader.read()))
            while sum(end.done() for end in ends) < 10:
                await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for writer in writers:
            writer.close()
        serving.cancel()
        await asyncio.gather(serving, *ends, return_exceptions=True)


def test_settings_for_the_former_identity_are_addresses(home: Path) -> None:
    text = (home / "coordinator.toml").read_text()
    (home / "coordinator.toml").write_text(text.replace("[network]", '[network]\nformer_listen = ["nowhere"]', 1))
    with pytest.raises(setup.SettingsFault, match="nowhere"):
        load(home)
