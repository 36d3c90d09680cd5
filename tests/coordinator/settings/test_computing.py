"""Device and threads that the settings leave to the machine."""

import re

import pytest

from echo2.coordinator.settings import computing
from echo2.coordinator.settings.computing import Computing, computing_of
from echo2.coordinator.settings.config import parse
from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.runtime import usable_cores
from echo2.runtime.settings import SettingsFault

ONE = ScorerSection()


def one_gpu() -> tuple[str, str]:
    return "cuda:1", "a card: most free memory of 2 GPUs"


def test_auto_is_the_machines_device_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    resolved = computing_of(LearnerSection(), ONE, one_gpu)
    assert resolved == ("cuda:1", usable_cores.usable_cores(), "a card: most free memory of 2 GPUs", (), ())
    assert resolved.sentence().startswith("learner and scorer compute on cuda:1 (a card: most free memory")


def test_settings_that_name_them_are_taken_and_nothing_is_asked() -> None:
    def never() -> tuple[str, str]:
        raise AssertionError("asked")

    resolved = computing_of(LearnerSection(device="cuda", threads=3), ONE, never)
    assert resolved == ("cuda", 3, "", (), ())
    assert resolved.sentence() == "learner and scorer compute on cuda, each process with 3 threads"


def test_ranks_divide_the_cores_and_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    resolved = computing_of(LearnerSection(ranks=2), ONE, one_gpu)
    assert (resolved.device, resolved.threads) == ("cuda", max(1, usable_cores.usable_cores() // 2))


def test_ranks_and_scorer_divide_the_cores_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(usable_cores, "usable_cores", lambda: 12)
    assert [computing_of(LearnerSection(device="cpu", ranks=ranks), ONE).threads for ranks in (1, 3)] == [6, 3]
    assert computing_of(LearnerSection(), ONE, one_gpu).threads == 12


def test_scorers_have_the_devices_that_are_named_and_their_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(usable_cores, "usable_cores", lambda: 12)
    two = ScorerSection(devices=("cpu", "cpu"))
    on_cpu = computing_of(LearnerSection(device="cpu"), two)
    assert (on_cpu.scorer_devices, on_cpu.threads) == (("cpu", "cpu"), 4)
    assert computing_of(LearnerSection(), two, one_gpu).threads == 6, "the learner computes on a card"
    cards = computing_of(LearnerSection(), ScorerSection(devices=("cuda:2", "cuda:3")), one_gpu)
    assert (cards.device, cards.scorer_devices, cards.threads) == ("cuda:1", ("cuda:2", "cuda:3"), 12)
    assert cards.sentence() == (
        "the learner computes on cuda:1 (a card: most free memory of 2 GPUs), 2 scorers on cuda:2, cuda:3; each "
        "process with 12 threads"
    )
    assert computing_of(LearnerSection(), ONE, one_gpu).scorer_devices == ("cuda:1",)


@pytest.mark.parametrize(
    ("devices", "sentence"),
    [
        (
            '["cuda:1", "cpu", "cuda:1"]',
            r"^ECHO2_COORD_SCORER_DEVICES: scorer\.devices: names cuda:1 twice, and two scorers on one card",
        ),
        ('["cuda", "cuda:0"]', "names cuda:0 twice"),
        ('["auto", "cpu"]', "names auto among others"),
        ("[]", r"should be auto, or a list of devices as .*, not \[\]"),
        ('["CUDA"]', r"should be auto, or a list of devices as .*, not \['CUDA'\]"),
        ("none", "should be auto, or a list of devices as .*, not 'none'"),
    ],
)
def test_devices_that_make_no_sense_are_refused_in_a_sentence(devices: str, sentence: str) -> None:
    with pytest.raises(SettingsFault, match=sentence):
        parse({}, source="x", env={"ECHO2_COORD_SCORER_DEVICES": devices})


@pytest.mark.parametrize("precision", ["tf32", "fp32", "Float32"])
def test_a_precision_that_no_scorer_has_is_refused_in_a_sentence(precision: str) -> None:
    sentence = f"ECHO2_COORD_SCORER_PRECISION: scorer.precision should be 'auto' or 'float32', not '{precision}'"
    with pytest.raises(SettingsFault, match=rf"^{re.escape(sentence)}$"):
        parse({}, source="x", env={"ECHO2_COORD_SCORER_PRECISION": precision})


def test_groups_of_16_bits_may_be_scored_in_tf32_unless_the_settings_say_float32() -> None:
    assert [ScorerSection(precision=one).tf32 for one in ("auto", "float32")] == [True, False]


def test_a_cpu_may_have_several_scorers_and_a_card_has_one() -> None:
    config = parse({}, source="x", env={"ECHO2_COORD_SCORER_DEVICES": '["cpu", "cpu", "cuda:0", "cuda:1"]'})
    assert config.scorer.devices == ("cpu", "cpu", "cuda:0", "cuda:1")
    assert (config.scorer.number, ONE.number) == (4, 1)


def test_a_scorers_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def no_card(name: str) -> tuple[str, str, str]:
        asked.append(name)
        return "", "", "no such card"

    monkeypatch.setattr(computing, "device_by_torch", no_card)
    section = ScorerSection(devices=("cpu", "cuda:7"))
    with pytest.raises(SettingsFault, match=r"scorer\.devices is cuda:7, which .* cannot use \(no such card\)"):
        computing.check_present(LearnerSection(device="cpu"), section)
    assert asked == ["cuda:7"]


def test_demos_and_tests_compute_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert computing_of(LearnerSection(), ONE, one_gpu).threads == 1
    assert Computing("cpu", 1, "").sentence().endswith("with 1 thread")


@pytest.mark.slow
def test_pytorch_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    device, why, fault = computing.device_by_torch("auto")
    assert device
    assert why
    assert not fault
    monkeypatch.setattr(computing, "PROGRAM", "raise SystemExit('no driver')")
    assert computing.device_by_torch("auto") == ("", "", "PyTorch found no device: no driver")


@pytest.mark.slow
def test_a_named_gpu_that_pytorch_does_not_see_is_refused_with_its_words() -> None:
    with pytest.raises(SettingsFault, match=r"learner\.device is cuda:63, which .* \(.*cuda:63 does not exist"):
        computing.check_present(LearnerSection(device="cuda:63"), ONE)
    with pytest.raises(SettingsFault, match=r"learner\.device is cuda, .*cuda:63 does not exist"):
        computing.check_present(LearnerSection(device="cuda", ranks=64), ONE)
