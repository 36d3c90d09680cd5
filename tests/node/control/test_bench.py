"""`echo2-node bench`: what it shows, and each reason for which it cannot."""

import json
from pathlib import Path

import msgspec
import pytest

from echo2.engines.process.candidates import Candidate, Trial
from echo2.engines.rate import Rate
from echo2.node.config import NodeConfig
from echo2.node.control.bench import bench
from echo2.node.engine_choice import FILE, EngineRecord
from echo2.node.errors import AlreadyRuns, BadConfig, TryLater
from echo2.node.home import lock_home, run_folder
from echo2.p2p.discovery.invite import Invite

INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/memory/0/p2p/QmA"])
CPU = Candidate(engine="transformers", dtype="float32", device="cpu", hardware="a CPU")
CARD = Candidate(engine="llamacpp", dtype="float16", device="vulkan:0", hardware="a card")
RECORD = EngineRecord(
    key="k",
    trials=[
        Trial(candidate=CARD, fault="the run has no calibration of this class"),
        Trial(candidate=CPU, rate=Rate(tokens=500, seconds=5.0, cpu_seconds=4.0, rows=64)),
    ],
)


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    (tmp_path / "invite").write_text(INVITE.to_text())
    return NodeConfig(home=tmp_path)


def test_the_kept_rates_are_shown_as_lines_and_as_json(config: NodeConfig) -> None:
    folder = run_folder(config.home, INVITE.run)
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(msgspec.json.encode(RECORD))
    assert bench(config, again=False, as_json=False) == [
        "transformers/float32/cpu (a CPU): 100 tokens/s with 64 rows, 125 per CPU second: chosen",
        "llamacpp/float16/vulkan:0 (a card): the run has no calibration of this class",
    ]
    (text,) = bench(config, again=False, as_json=True)
    card, cpu = json.loads(text)
    assert (card["chosen"], card["tokens_per_second"], card["reason"][:7]) == (False, None, "the run")
    assert (cpu["chosen"], cpu["tokens_per_second"], cpu["tokens_per_cpu_second"], cpu["rows"]) == (True, 100, 125, 64)


def test_devices_that_are_named_are_timed_each_and_nothing_is_kept(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.model_copy(update={"gpu": "vulkan:0,cpu"})
    with pytest.raises(BadConfig, match=r"only --gpu auto keeps rates: .* echo2-node bench --again"):
        bench(config, again=False, as_json=False)
    with pytest.raises(TryLater, match="no version of the run's model is here yet"):
        bench(config, again=True, as_json=False)
    monkeypatch.setattr("echo2.node.control.bench._at_rest", lambda config, invite, measure: RECORD.trials)
    assert bench(config, again=True, as_json=False) == [
        "llamacpp/float16/vulkan:0 (a card): the run has no calibration of this class",
        "transformers/float32/cpu (a CPU): 100 tokens/s with 64 rows, 125 per CPU second",
    ]
    (text,) = bench(config, again=True, as_json=True)
    assert [row["chosen"] for row in json.loads(text)] == [False, False]
    assert not (run_folder(config.home, INVITE.run) / FILE).exists()


def test_before_anything_was_timed_the_command_is_named(config: NodeConfig) -> None:
    with pytest.raises(TryLater, match="echo2-node bench --again"):
        bench(config, again=False, as_json=False)


def test_nothing_is_timed_before_a_version_is_here(config: NodeConfig) -> None:
    with pytest.raises(TryLater, match="no version of the run's model is here yet: echo2-node run"):
        bench(config, again=True, as_json=False)


def test_nothing_is_timed_beside_a_running_node(config: NodeConfig) -> None:
    with lock_home(config.home), pytest.raises(AlreadyRuns):
        bench(config, again=True, as_json=False)


def test_a_home_without_a_run_and_a_damaged_invite_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no run was joined"):
        bench(NodeConfig(home=tmp_path), again=False, as_json=False)
    (tmp_path / "invite").write_text("echo2:nonsense")
    with pytest.raises(BadConfig):
        bench(NodeConfig(home=tmp_path), again=False, as_json=False)
