"""A vLLM that ends while it loads, with real processes: another engine computes, or the node ends with a sentence."""

import re
from pathlib import Path

import pytest

from echo2.engines import registry
from echo2.engines.engine import EngineUnusable
from echo2.engines.process import trials, versioned
from echo2.engines.process.candidates import best, candidates, lines
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.engines.rate import TaskShare, Workload
from echo2.engines.vllm import availability
from echo2.node.error_translation import translated_errors
from echo2.node.errors import NodeError
from echo2.runtime.backoff import Backoff
from echo2.runtime.exit_codes import Exit
from echo2.tasks import tokenizer
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import random_table, write_table
from tests.support.ending_vllm import BIGRAM, END

pytestmark = pytest.mark.slow
WORK = Workload(tasks=(TaskShare(name="reverse", version=1),), limit=16, group=4, eos=tokenizer.EOS)
ENDS = {
    "raise": "vLLM cannot run this model on cpu: Engine core initialization failed.",
    "leave": "engine ended with 1: vllm: no kernel image is available for execution on the device",
    "exit": "engine ended with 3: vllm: a worker is gone",
    "abort": "engine ended with -6: ",
    "kill": "engine ended with -9: ",
}
"""How vLLM ends -> the beginning of the sentence."""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """Let this process know both engines; return the weights of a model's folder."""
    monkeypatch.setattr(availability, "missing", list)
    monkeypatch.setitem(registry._ROWS, BIGRAM.name, BIGRAM)
    monkeypatch.setattr(trials, "MEASURED_SECONDS", 0.3)
    tokenizer.char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"architectures": ["BigramForCausalLM"]}')
    return write_table(tmp_path / "table.safetensors", random_table(0, 64))


def process(end: str) -> EngineProcess:
    return EngineProcess(module="tests.support.ending_vllm", env={END: end})


@pytest.mark.parametrize("end", ENDS)
async def test_it_loses_alone_with_a_sentence_and_another_engine_computes(
    end: str, table: Snapshot, tmp_path: Path
) -> None:
    seen = await trials.sights(lambda: process(end), ["vllm", "bigram"])
    ready, _ = candidates(seen, lambda engine_class: "" if "/float32/" in engine_class else "not admitted")
    assert [one.engine_class for one in ready] == ["vllm/float32/cpu", "bigram/float32/cpu"]
    done = await trials.run_trials(lambda: process(end), ready, tmp_path, table.path, WORK)
    assert best(done) is done[1]
    (sentence,) = [one for one in lines(done) if one.startswith("vllm")]
    assert ENDS[end] in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ("raise", f"the engine cannot load version 4: {ENDS['raise']}"),
        ("kill", f"the engine died 2 times in a row: {ENDS['kill']}"),
    ],
)
async def test_one_that_the_owner_names_ends_the_node_before_its_first_group(
    end: str, sentence: str, table: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned, "RESTART_BACKOFF", Backoff(0.01, 0.01))
    monkeypatch.setattr(versioned, "MOST_CRASHES", 1)
    before = table.path.read_bytes()
    engine = VersionedEngine(lambda: process(end), device="cpu", engine="vllm", seed=1)
    engine.model = tmp_path
    engine.current = LoadedVersion(era=1, version=4, root=table.root, weights=table.path)
    with pytest.raises(NodeError, match=f"^{re.escape(sentence)}") as ended, translated_errors():
        async with engine.shared():
            pytest.fail("a group could begin")
    assert isinstance(ended.value.__cause__, EngineUnusable)
    assert (ended.value.exit, "\n" in str(ended.value)) == (Exit.NO_DEVICE, False)
    assert table.path.read_bytes() == before
    await engine.stop()
