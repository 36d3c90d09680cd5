"""A node's engine on a machine without torch: chosen by `auto`, and all its calls work."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import volunteer
from echo2.coordinator.verification.verification import judge
from echo2.engines.engine import SampleScore
from echo2.engines.process.messages import float_bytes
from echo2.engines.process.process import EngineProcess
from echo2.engines.transformers.engine import TransformersEngine
from echo2.protocol.leases import Rollout, Segment
from echo2.runtime.child import ChildError
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support import llama_cpp, tiny_model
from tests.support.paths import ROOT
from tests.support.tiny_model import job

TORCHLESS = {"PYTHONPATH": str(ROOT / "tests/support/torchless")}


@pytest.fixture
def torchless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide torch from the processes that a test starts."""
    monkeypatch.setenv("PYTHONPATH", TORCHLESS["PYTHONPATH"])


@llama_cpp.needed
@pytest.mark.slow
async def test_auto_takes_llama_cpp_where_torch_is_not_installed(tmp_path: Path, torchless: None) -> None:
    old = tiny_model.make(tmp_path / "model")
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(old.snapshot))
    new, payload = tiny_model.next_version(old)
    scorer = TransformersEngine()
    scorer.load(new.folder, new.snapshot)
    async with EngineProcess() as engine:
        probed = await engine.probe("cpu")
        assert (probed.kind, probed.engine_class) == ("cpu", "llamacpp/float32/cpu")
        assert (await engine.load(old.folder, folder)).root == old.root
        assert (await engine.step_by(payload, new.root, 1)).root == new.root
        groups = await engine.generate_all([job(index, samples=6, limit=16) for index in range(3)])
        with pytest.raises(ChildError, match="does not score"):
            await engine.score(job(0, samples=0), [])
    for index, samples in enumerate(groups):
        asked = job(index, samples=6, limit=16)
        scores: list[SampleScore | None] = list(scorer.score(asked, samples))
        rollouts = [
            Rollout(
                tokens=one.tokens, turns=one.turns, logprobs=float_bytes(one.logprobs),
                segments=[Segment(version=1, root=new.root, first=0)],
            )
            for one in samples
        ]  # fmt: skip
        assert judge(rollouts, scores).code == "ok"


async def test_an_engine_chosen_by_name_says_what_it_lacks(torchless: None) -> None:
    async with EngineProcess() as engine:
        with pytest.raises(ChildError, match=r"needs torch, transformers: .* install .*\[torch\]") as refused:
            await engine.probe("cpu", engine="transformers")
        assert refused.value.kind == "UnknownEngine"


@pytest.mark.slow
def test_the_node_s_own_process_and_its_engine_s_are_imported_without_torch(torchless: None) -> None:
    program = (
        "import echo2.engines.llamacpp.engine, echo2.engines.process.host, echo2.node.daemon, echo2.node.cli\n"
        "try: import torch\n"
        "except ModuleNotFoundError: print('none')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "none"


@pytest.mark.slow
@llama_cpp.needed
def test_a_node_without_torch_joins_works_and_is_credited(tmp_path: Path) -> None:
    """The node is `echo2-node join` with its engine's process; its groups go through the scorer's exact check."""
    tiny = tiny_model.make(tmp_path / "model")
    shutil.copyfile(tiny.snapshot, tmp_path / "model" / "model.safetensors")
    with volunteer.joined(
        tiny.folder, tiny.snapshot, tmp_path, task="reverse", limit=12, group=8, groups=3, engines=["llamacpp"],
        env=TORCHLESS,
    ) as candidate:  # fmt: skip
        measured = candidate()
    assert measured.work >= 3 * 8
    log = (tmp_path / "node.log").read_text()
    assert "(llamacpp/float32/cpu)" in log
