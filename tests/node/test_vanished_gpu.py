"""A GPU that vanishes in a lease, with a real engine process: the group is generated again on the card that came back,
or the node ends with exit code 80 and the sentence of the card that is gone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from echo2.engines import registry
from echo2.engines.engine import EngineUnusable, Job
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.node.error_translation import translated_errors
from echo2.node.errors import NodeError
from echo2.runtime.child import ChildDied
from echo2.runtime.exit_codes import Exit
from echo2.tasks import tokenizer
from tests.support.bigram import random_table, write_table
from tests.support.vanishing_gpu import FAILS, THERE, VANISHING

JOB = Job(
    prompt=[2, 3], seeds=[bytes([number]) * 16 for number in range(4)], limit=16, eos=1, task="reverse",
    task_version=1, split="train", index=0,
)  # fmt: skip


@asynccontextmanager
async def on_card(folder: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> AsyncIterator[VersionedEngine]:
    """Yield an engine on a card in this state, with a version loaded."""
    (folder / "card").write_text(state)
    monkeypatch.setitem(registry._ROWS, VANISHING.name, VANISHING)
    tokenizer.char_tokenizer().save(str(folder / "tokenizer.json"))
    table = write_table(folder / "table.safetensors", random_table(1, tokenizer.CHAR_SIZE))
    engine = VersionedEngine(
        lambda: EngineProcess(module="tests.support.vanishing_gpu", env={THERE: str(folder / "card")}),
        device="cuda:0", engine=VANISHING.name, seed=1,
    )  # fmt: skip
    engine.model = folder
    engine.current = LoadedVersion(era=1, version=4, root=table.root, weights=table.path)
    try:
        async with engine.shared():
            yield engine
    finally:
        await engine.stop()


@pytest.mark.slow
async def test_a_card_that_is_gone_ends_the_node_with_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_card(tmp_path, monkeypatch, FAILS) as engine:
        with pytest.raises(ChildDied, match="the device failed: CUDA error"):
            await engine.generate(JOB)
        with pytest.raises(EngineUnusable) as gone:
            await engine.recover()
    with (
        pytest.raises(NodeError, match="cuda:0 does not exist: an NVIDIA GPU is present") as ended,
        translated_errors(),
    ):
        raise gone.value
    assert ended.value.exit == Exit.NO_DEVICE


@pytest.mark.slow
async def test_on_a_card_that_came_back_the_same_lease_is_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_card(tmp_path, monkeypatch, "works") as engine:
        samples = await engine.generate(JOB)
    async with on_card(tmp_path, monkeypatch, FAILS) as engine:
        with pytest.raises(ChildDied):
            await engine.generate(JOB)
        (tmp_path / "card").write_text("works")
        await engine.recover()
        assert await engine.generate(JOB) == samples
