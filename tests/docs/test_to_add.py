"""CONTRIBUTING.md, "To add a ...": a toy of each kind is added through the public registries alone, and works.

1. Each list names only files and folders that exist, and names in the code that the module before them defines.
2. Each list has a test here that adds a toy of its kind: `ADDED` says which.
"""

import importlib
import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import typer
from pydantic import Field
from typer.testing import CliRunner

from benchmarks.memory_network.transport import MemoryNetwork
from benchmarks.plays.direct import generate
from echo2.coordinator.accounts.pay import PAY_RULES, PayRule
from echo2.coordinator.learner import model, step
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective.loss_terms import LossInputs, none_of
from echo2.coordinator.learner.objective.surrogates import SURROGATES, Surrogate
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.settings.objective_choices import PRESETS, Choices
from echo2.coordinator.verification.verification import FORM_RULES, SCORE_RULES, Evidence, ExactThresholds, Facts
from echo2.engines import registry as engine_registry
from echo2.engines.engine import Job, SampleScore
from echo2.engines.registry import TRANSFORMERS
from echo2.node import cli
from echo2.node.config import NodeConfig
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import Wire
from echo2.protocol.authority import RunSpec
from echo2.protocol.leases import Lease, Rollout
from echo2.protocol.methods import Method, message
from echo2.protocol.refusals import REASONS, Reason
from echo2.runtime.settings import Loader
from echo2.tasks import registry as task_registry
from echo2.tasks.task import Score, Split, Tokenizer, Transcript, begin_episode, replay
from tests.docs import settings_table
from tests.support.bigram import BigramEngine, random_table, write_table
from tests.support.clock import on_fake_clock
from tests.support.documents import SPAN, section
from tests.support.group_world import SPEC, TEXT, World, group, rollout
from tests.support.paths import ROOT
from tests.support.peers import running
from tests.support.tiny_learner import batch, make_model

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
HEADINGS = re.findall(r"^### (To add an? .*)$", PAGE, re.MULTILINE)
FOLDERS = (
    "coordinator",
    "docs",
    "engines",
    "ledger",
    "node",
    "p2p",
    "protocol",
    "runtime",
    "tasks",
    "tests",
    "weights",
)


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_path_on_the_page_exists(heading: str) -> None:
    paths = [span for span in SPAN.findall(section(PAGE, heading)) if span.partition("/")[0] in FOLDERS and "/" in span]
    assert paths, heading
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []
    templates = [path for path in paths if "NAME" in path]
    assert [path for path in templates if not (ROOT / path.partition("NAME")[0]).is_dir()] == []


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_class_and_table_on_the_page_is_in_a_module_of_its_list(heading: str) -> None:
    spans = SPAN.findall(section(PAGE, heading))
    files = [span for span in spans if span.endswith(".py") and "NAME" not in span and not span.startswith("tests/")]
    modules = [importlib.import_module(file.removesuffix(".py").replace("/", ".")) for file in files]
    names = [span for span in spans if re.fullmatch(r"(?!NAME)[A-Z]\w+(\.\w+)*|register|choose", span)]

    def is_there(name: str) -> bool:
        first, _, attribute = name.partition(".")
        return any(
            hasattr(module, first) and (not attribute or hasattr(getattr(module, first), attribute))
            for module in modules
        )

    assert [name for name in names if not is_there(name)] == []


def test_every_list_has_a_toy() -> None:
    assert set(HEADINGS) == set(ADDED)
    assert all(callable(globals()[name]) for name in ADDED.values())


ADDED = {
    "To add a task": "test_a_task_is_a_class_and_a_call_of_register",
    "To add an engine": "test_an_engine_is_a_class_and_a_row",
    "To add an objective": "test_an_objective_is_a_function_and_an_entry",
    "To add a verification rule": "test_a_verification_rule_is_a_reason_a_function_and_an_entry",
    "To add a pay rule": "test_a_pay_rule_is_an_entry_under_its_price_mode",
    "To add a wire method": "test_a_wire_method_is_its_messages_and_a_row",
    "To add a setting": "test_a_setting_is_a_field",
    "To add a CLI command": "test_a_cli_command_is_a_function",
}


# --- a task ----------------------------------------------------------------------------------------------------------


class EchoEpisode:
    def __init__(self, word: str, text: Tokenizer) -> None:
        self.prompt: Sequence[int] = text.encode(word)
        self._word, self._text, self._said = word, text, ""

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._said = self._text.decode(sampled)
        return None

    def score(self) -> Score:
        return Score(1.0, True) if self._said == self._word else Score(0.0, False)


class Echo:
    """Say the prompt again."""

    name, version = "echo", 1

    def size(self, split: Split) -> int:
        return 9 if split == "train" else 1

    def episode(self, split: Split, index: int, text: Tokenizer) -> EchoEpisode:
        return EchoEpisode(str(index if split == "train" else 9), text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        answer = str(random.Random(seed).randrange(10)) if noise else str(index)
        return [*text.encode(answer), text.eos]


def test_a_task_is_a_class_and_a_call_of_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_registry, "_TASKS", dict(task_registry._TASKS))  # so that it is gone afterwards
    task_registry.register(Echo())
    assert ("echo", 1) in task_registry.list_tasks()
    task = task_registry.get("echo", 1)
    right = [*TEXT.encode("4"), TEXT.eos]
    for answer, reward in ((right, 1.0), ([*TEXT.encode("5"), TEXT.eos], 0.0)):
        transcript = Transcript(answer, [len(answer)])
        assert replay(begin_episode(task, "train", 4, TEXT), transcript, ends=TEXT.ends, limit=8).reward == reward
    with pytest.raises(ValueError, match="there is a task echo version 1"):
        task_registry.register(Echo())


# --- an engine -------------------------------------------------------------------------------------------------------


def toy_engine(device: str, dtype: str) -> BigramEngine:
    return BigramEngine()


def test_an_engine_is_a_class_and_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_registry, "_ROWS", dict(engine_registry._ROWS))  # so that it is gone afterwards
    row = engine_registry.EngineRow(
        name="table",
        factory=f"{__name__}:toy_engine",
        finder="echo2.engines.devices.devices:inventory",
        devices=("cpu",),
        dtypes=("float32",),
        packages=("numpy",),
        install="pip install numpy",
        sampling=TRANSFORMERS.sampling,
    )
    engine_registry.register(row)
    chosen = engine_registry.choose("table")
    assert chosen.engine_class("cpu", "float32") == "table/float32/cpu"
    engine = chosen.make("cpu", "float32")
    engine.load(tmp_path, write_table(tmp_path / "table.safetensors", random_table(3)).path)
    job = Job(
        prompt=[2, 3], seeds=[bytes(16), bytes([1]) * 16], limit=4, eos=1, task="reverse", task_version=1,
        split="train", index=0,
    )  # fmt: skip
    samples = generate(engine, job)
    assert len(samples) == 2
    assert all(not np.any(np.asarray(score.margins)) for score in engine.score(job, samples))


# --- an objective ----------------------------------------------------------------------------------------------------


def plain(anchor: torch.Tensor, terms: LossInputs, hyper: Hyper) -> Surrogate:
    """A log p."""
    return Surrogate(terms.advantage * terms.current, none_of(terms), none_of(terms))


def test_an_objective_is_a_function_and_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "model")
    hyper = Hyper(objective="plain", learning_rate=0.01, warmup_steps=0)
    policy = model.load(folder, "cpu")
    with pytest.raises(ValueError, match="objective 'plain' is unknown"):
        step.train_step(policy, Optimiser(policy, hyper), batch(1), hyper, steps=0)
    monkeypatch.setitem(SURROGATES, "plain", plain)
    monkeypatch.setitem(PRESETS, "plain", Choices("none", "none", "plain"))
    before = [value.detach().clone() for value in policy.parameters()]
    metrics = step.train_step(policy, Optimiser(policy, hyper), batch(1), hyper, steps=0)
    assert (metrics["clipped"], metrics["truncated"]) == (0.0, 0.0)
    assert any(not torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))


# --- a verification rule ---------------------------------------------------------------------------------------------


def seven_is_unlucky(rollout: Rollout, lease: Lease, spec: RunSpec) -> str | None:
    (seven,) = TEXT.encode("7")
    return "it has a seven" if seven in list(rollout.tokens) else None


def sure_of_itself(evidence: Evidence, calibration: ExactThresholds) -> Facts | None:
    return {"nats": float(evidence.ours.max())} if evidence.ours.max() > -0.1 else None


def test_a_verification_rule_is_a_reason_a_function_and_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REASONS, "unlucky", Reason("Sample {sample}: {detail}.", "node"))
    monkeypatch.setitem(REASONS, "too-sure", Reason("Sample {sample}: {nats} nats.", "node"))
    monkeypatch.setitem(FORM_RULES, "unlucky", seven_is_unlucky)  # type: ignore[arg-type]
    monkeypatch.setitem(SCORE_RULES, "too-sure", sure_of_itself)
    world = World(tmp_path)
    receipt = world.refused(group(world.lease(), ["1", "7"]))
    assert (receipt.code, receipt.reason) == ("unlucky", "Sample 1: it has a seven.")
    lease = world.lease()
    sure = rollout(lease, "2", logprobs=struct.pack("<2f", -0.01, -0.01))
    world.submit(group(lease, rollouts=[rollout(lease, "1"), sure]))
    (waiting,) = world.group_service.list_undecided(10)
    scores = [SampleScore(logprobs=[value] * 2, margins=[0.0] * 2) for value in (-0.5, -0.01)]
    refused = world.decide(waiting, scores)
    assert (refused.code, refused.reason) == ("too-sure", "Sample 1: -0.01 nats.")
    world.submit(group(world.lease(), ["1", "2"]))
    assert world.decide_all()[0].verdict == "accepted"
    world.close()


# --- a pay rule ------------------------------------------------------------------------------------------------------


def test_a_pay_rule_is_an_entry_under_its_price_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = PayRule(lambda _costs, _prompt, turns: 1000 * len(turns), PAY_RULES["points"].fund)
    monkeypatch.setitem(PAY_RULES, "by-rollout", rule)
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, price_mode="by-rollout"))
    world.submit(group(world.lease()))
    (receipt,) = world.decide_all()
    assert receipt.weight == 1000 * SPEC.group_size
    assert sum(world.group_service.ledger.balances().values()) == 0
    world.close()


# --- a wire method ---------------------------------------------------------------------------------------------------


class SumRequest(Wire, frozen=True):
    values: list[int]


class SumResponse(Wire, frozen=True):
    total: int


SUM = Method("sum", "anyone -> anyone", message(SumRequest), message(SumResponse), 4096)


@on_fake_clock
async def test_a_wire_method_is_its_messages_and_a_row() -> None:
    async def answer(peer: str, request: SumRequest) -> SumResponse:
        return SumResponse(total=sum(request.values))

    network = MemoryNetwork(1)
    one, other = (Peer(network.transport(name), seed=0) for name in ("one", "other"))
    SUM.serve(one, answer)
    async with running(one, other):
        assert (await SUM.ask(other, "one", SumRequest(values=[1, 2, 3]), timeout=5)).total == 6


# --- a setting -------------------------------------------------------------------------------------------------------


class WiderConfig(NodeConfig):
    naps: int = Field(0, ge=0, le=9, description="Naps per day.")


def test_a_setting_is_a_field(tmp_path: Path) -> None:
    loader = Loader(WiderConfig, "ECHO2_", lambda name: False)
    asked = {"source": "node.toml", "env": {"ECHO2_NAPS": "3"}}
    config, origins = loader.load({"naps": 2}, flags={}, **asked)  # type: ignore[arg-type]
    assert (config.naps, origins["naps"]) == (3, "ECHO2_NAPS")
    assert loader.load({}, flags={"naps": 4}, **asked)[0].naps == 4  # type: ignore[arg-type]
    with pytest.raises(Exception, match="naps should be less than or equal to 9, not 10"):
        loader.load({}, source="node.toml", env={"ECHO2_NAPS": "10"}, flags={})
    assert settings_table.table() in settings_table.PAGE.read_text(), "run the command that the list names"


# --- a CLI command ---------------------------------------------------------------------------------------------------


def test_a_cli_command_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))

    @cli.app.command()
    @cli.errors_reported
    def greet(name: str = "you") -> None:
        """Greet."""
        typer.echo(f"hello {name}")

    result = CliRunner().invoke(cli.app, ["greet", "--name", "Ann"])
    assert (result.exit_code, result.stdout) == (0, "hello Ann\n")
    assert "greet" in CliRunner().invoke(cli.app, ["--help"]).stdout
