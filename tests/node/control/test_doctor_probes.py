"""The measurements of `echo2-node doctor` on a real network on loopback."""

import asyncio
import errno
import os
import re
import socket
from pathlib import Path

import pytest

from echo2.engines.devices.system_gpus import SystemGpu
from echo2.node.config import NodeConfig
from echo2.node.control import doctor_checks
from echo2.node.control.doctor_probes import examine
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.limits.relay_quota import RelayLimits
from echo2.p2p.wire_types import encode
from echo2.protocol.versions import Head, HeadResponse
from echo2.runtime.exit_codes import Exit


async def examined(addresses: list[str], tmp_path: Path, **settings) -> dict[str, doctor_checks.Check]:
    config = NodeConfig(home=tmp_path / "home", listen=("/ip4/127.0.0.1/tcp/0",), disk=0.001, **settings)
    invite = Invite(run=bytes(32), root_hash=bytes(32), addresses=addresses)
    return {row.check: row for row in await examine(config, invite, running=False)}


@pytest.mark.slow
async def test_a_coordinator_on_loopback_is_dialled_asked_and_dials_back(tmp_path):
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
    assert rows["pay"].actual.startswith("not known: ")
    assert rows["pay"].verdict == "good", "without a Root of the run"
    assert not (tmp_path / "home").exists(), "it changes nothing"
    task.cancel()
    await asyncio.wait([task])


async def test_an_address_without_a_listener_is_named(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        number = closed.getsockname()[1]
        rows = await examined([f"/ip4/127.0.0.1/tcp/{number}/p2p/{ThreadedPeer(generate_key(), []).peer_id}"], tmp_path)
    assert rows["coordinator"].exit == Exit.UNREACHABLE
    assert f"127.0.0.1 port {number}" in rows["direct"].remedy
    assert rows["names"].actual == "none is needed: the invite has IP addresses"
    assert rows["tcp"].actual == f"127.0.0.1 port {number}: {os.strerror(errno.ECONNREFUSED)}"


async def test_a_name_that_nobody_knows_is_no_matter_of_a_firewall(tmp_path):
    peer = ThreadedPeer(generate_key(), []).peer_id
    rows = await examined([f"/dns4/nowhere.invalid/tcp/4310/p2p/{peer}"], tmp_path)
    assert rows["names"].actual.startswith("nowhere.invalid: ")
    assert rows["tcp"].actual == "not tried: no address is known"
    for name in ("names", "direct", "coordinator"):
        assert "name servers do not know the name" in rows[name].remedy


async def test_a_dead_proxy_is_named_and_no_firewall_is_blamed_for_it(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        number = closed.getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:a-word@127.0.0.1:{number}")
        rows = await examined(["/dns4/coord.invalid/tcp/4311/https/p2p/c"], tmp_path)
    assert rows["proxy"].actual == f"127.0.0.1 port {number}: {os.strerror(errno.ECONNREFUSED)}"
    assert [rows[name].remedy for name in ("proxy", "https", "coordinator")] == [doctor_checks._PROXY_REMEDY] * 3
    assert "a-word" not in "".join(doctor_checks.table(list(rows.values())))
    monkeypatch.setenv("NO_PROXY", "coord.invalid")
    rows = await examined(["/dns4/coord.invalid/tcp/4311/https/p2p/c"], tmp_path)
    assert "proxy" not in rows
    assert "coord.invalid: " in rows["names"].actual


async def test_each_device_that_is_named_has_a_row(tmp_path, monkeypatch):
    card = SystemGpu(vendor="nvidia", driver="nvidia")
    monkeypatch.setattr("echo2.node.control.doctor_probes.system_gpus", lambda: [card, card])
    monkeypatch.setattr("echo2.node.control.doctor_probes.foreseen", lambda *_: "")
    config = NodeConfig(home=tmp_path / "home", listen=(), disk=0.001, gpu="cuda:0,vulkan:1,cuda:2,cpu")
    rows = await examine(config, None, running=True)
    assert [(row.wanted, row.verdict) for row in rows if row.check == "gpu"] == [
        ("cuda:0", "good"), ("vulkan:1", "good"), ("cuda:2", "bad"), ("cpu", "good"),
    ]  # fmt: skip
    (missing,) = [row for row in rows if row.wanted == "cuda:2"]
    assert missing.remedy == "there is no GPU 2: the system shows 2, numbered from 0"


async def test_limits_of_a_gpu_that_is_not_there_are_a_row(tmp_path, monkeypatch):
    card = SystemGpu(vendor="nvidia", driver="nvidia")
    monkeypatch.setattr("echo2.node.control.doctor_probes.system_gpus", lambda: [card, card])
    limits = {name: {"duty": 50} for name in ("1", "cuda:0", "cpu", "vulkan:2")}
    config = NodeConfig(home=tmp_path / "home", listen=(), disk=0.001, gpu="cpu", devices=limits)
    (row,) = [row for row in await examine(config, None, running=True) if row.check == "device limits"]
    assert (row.actual, row.verdict) == ("[devices.vulkan:2]", "poor")
    assert row.remedy.startswith("the system shows 2 GPUs, numbered from 0")


async def test_a_fix_that_several_rows_share_is_named_once(tmp_path, monkeypatch):
    monkeypatch.setattr("echo2.node.control.doctor_probes.system_gpus", list)
    config = NodeConfig(home=tmp_path / "home", listen=(), disk=0.001, gpu="0,1")
    lines = doctor_checks.table(await examine(config, None, running=True))
    assert [line for line in lines if "wanted: GPU" in line] != []
    assert len([line for line in lines if line.startswith("-> gpu")]) == 1


@pytest.mark.parametrize(
    ("settings", "remedy", "code"),
    [
        ({"engine": "vllm"}, "engine vllm needs vllm: echo2-node engine install vllm", Exit.NO_DEVICE),
        ({"engine": "abacus"}, "not in this build", Exit.CONFIG),
        ({"engine": "transformers", "dtype": "blocks"}, "transformers cannot compute in blocks", Exit.CONFIG),
        ({"engine": "llamacpp", "gpu": "cpu,mps"}, "llamacpp computes on .*, not on mps", Exit.CONFIG),
    ],
)
async def test_an_engine_that_join_would_refuse_has_a_bad_row_with_the_fix(
    tmp_path, monkeypatch, settings, remedy, code
):
    monkeypatch.setattr("echo2.engines.vllm.availability.missing", lambda: ["vllm"])
    config = NodeConfig(home=tmp_path / "home", listen=(), disk=0.001, **{"gpu": "cpu", **settings})
    (row,) = [row for row in await examine(config, None, running=True) if row.check == "engine"]
    assert (row.verdict, row.exit) == ("bad", code)
    assert re.search(remedy, row.remedy)


async def test_the_engines_that_are_installed_have_a_good_row(tmp_path):
    config = NodeConfig(home=tmp_path / "home", listen=(), disk=0.001, gpu="cpu")
    (row,) = [row for row in await examine(config, None, running=True) if row.check == "engine"]
    assert (row.verdict, row.remedy) == ("good", "")
    assert "transformers" in row.actual
