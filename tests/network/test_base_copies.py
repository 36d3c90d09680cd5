"""A node in processes of its own, with its real engine: bytes over the network with and without a copy of the base."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.runtime.units import unix_milliseconds
from echo2.tasks import tokenizer
from echo2.weights.documents import Version
from echo2.weights.hf_import import import_model
from echo2.weights.snapshot import Snapshot, writing_snapshot
from tests.support.fake_coordinator import YEAR, FakeCoordinator
from tests.support.libp2p_peers import LOOPBACK

LAST = 4
CHANGED = 0.01
"""Share of the elements that each version changes, by one bit."""
SECONDS = 180.0


class Model(NamedTuple):
    """`folder`: files of the run. `revision`: a folder as a hub's cache has it, in float32."""

    folder: Path
    revision: Path


def make_model(folder: Path) -> Model:
    """Write a model of 5 million parameters, and a cache of the hub with it under `folder`/cache."""
    config = Qwen3Config(
        vocab_size=tokenizer.CHAR_SIZE, hidden_size=256, num_hidden_layers=5, num_attention_heads=8,
        num_key_value_heads=4, intermediate_size=1024, head_dim=32, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.EOS, pad_token_id=tokenizer.PAD,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    revision = folder / "cache/hub/models--someone--small/snapshots/0123abcd"
    for place in (folder / "model", revision):
        config.save_pretrained(place)
        tokenizer.char_tokenizer().save(str(place / "tokenizer.json"))
    stored = {name: one for name, one in model.state_dict().items() if name != "lm_head.weight"}
    save_file(stored, revision / "model.safetensors")
    return Model(folder / "model", revision)


def changed(source: Snapshot, path: Path, seed: int) -> Snapshot:
    """Write weights of which a share of the elements has another last bit."""
    random = np.random.default_rng(seed)
    with writing_snapshot(path, source.tensors, source.aliases) as writer:
        for entry in source.tensors:
            bits = source.bits(entry.name)
            writer.write(bits ^ (random.random(bits.size) < CHANGED).astype(bits.dtype))
        writer.finish()
    return Snapshot(path)


async def publish(coordinator: FakeCoordinator, model: Model, addresses: list[str]) -> None:
    """Publish version 0, of the model in bfloat16, and `LAST` versions after it."""
    headers = Snapshot(model.revision / "model.safetensors").tensors
    table = [type(entry)(name=entry.name, dtype="BF16", shape=entry.shape) for entry in headers]
    aliases = {"lm_head.weight": "model.embed_tokens.weight"}
    snapshot = import_model(model.revision, coordinator.folder / "0", table, aliases)
    before: Snapshot | None = None
    for version in range(LAST + 1):
        snapshot = snapshot if before is None else changed(before, coordinator.folder / str(version), version)
        await coordinator.add_edge(version - 1 if before is not None else None, version, before, snapshot)
        coordinator.published[version] = Version(
            era=1, version=version, root=snapshot.root, tensors=snapshot.tensors, aliases=snapshot.aliases
        )
        before = snapshot
    await coordinator.announce(LAST, addresses=addresses)


async def received_by_a_node(coordinator: FakeCoordinator, peer: ThreadedPeer, home: Path, *words: str) -> int:
    """Let a node join until it holds the last version; return the payload bytes that were sent to it."""
    before = (await peer.traffic()).sent
    arguments = [
        "join", coordinator.invite(*await peer.addresses()).to_text(), "--home", str(home), "--gpu", "cpu",
        "--engine", "transformers", "--priority", "normal", "--json-logs", "--log", "debug", "--listen", LOOPBACK,
        "--via", "direct",
        *words,
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(coordinator.folder.parent / "cache")}
    env.pop("HF_HUB_CACHE", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "echo2.node.cli", *arguments, env=env, stderr=asyncio.subprocess.PIPE
    )
    logged = []
    try:
        async with asyncio.timeout(SECONDS):
            assert process.stderr is not None
            async for text_line in process.stderr:
                logged.append(json.loads(text_line) if text_line.startswith(b"{") else {"event": text_line.decode()})
                if logged[-1]["event"] == "version held":
                    break
    finally:
        process.kill()
        await process.wait()
    assert logged[-1].get("version") == LAST, logged
    return (await peer.traffic()).sent - before


@pytest.mark.slow
async def test_a_real_node_with_the_base_in_a_hubs_cache_fetches_the_diffs_alone(tmp_path: Path) -> None:
    """6,991,605 bytes without a copy and 227,561 with one, of 9,869,440 of weights four versions before."""
    model = make_model(tmp_path)
    coordinator = FakeCoordinator(tmp_path / "coordinator", now=unix_milliseconds)
    expires = unix_milliseconds() + YEAR
    coordinator.roots = [coordinator.sealed_root(0, coordinator.keys, coordinator.keys.root, expires=expires)]
    coordinator.assets.clear()
    for name in ("config.json", "tokenizer.json"):
        coordinator.add_asset(name, (model.folder / name).read_bytes())
    coordinator.runspec = coordinator.sealed_runspec(
        model="0123abcd", vocabulary=tokenizer.CHAR_SIZE, eos=tokenizer.EOS, engines=["transformers/float32"]
    )
    peer = ThreadedPeer(coordinator.identity, [LOOPBACK])
    async with coordinator.serving_as(peer):
        await publish(coordinator, model, await peer.addresses())
        full, *diffs = [edge.length for _, edge, _ in coordinator.edges]
        without = await received_by_a_node(coordinator, peer, tmp_path / "without", "--base", "none")
        found = await received_by_a_node(coordinator, peer, tmp_path / "found")
        named = await received_by_a_node(coordinator, peer, tmp_path / "named", "--base", str(model.revision))
    nbytes = Snapshot(coordinator.folder / "0").nbytes
    print(f"{nbytes} bytes of weights, {LAST} versions later: {without} bytes without a copy, {found} with one")
    assets = sum(asset.manifest.length for asset, _ in coordinator.assets)
    assert without == assets + full + sum(diffs)
    assert found == named == assets + sum(diffs)
    assert sum(diffs) < full / 20
