"""Device and threads that the settings leave to the machine."""

import pytest

from echo2.coordinator.settings import computing
from echo2.coordinator.settings.computing import Computing, computing_of
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
    assert resolved == ("cuda:1", usable_cores.usable_cores(), "a card: most free memory of 2 GPUs", ())
    assert resolved.sentence().startswith("learner and scorer compute on cuda:1 (a card: most free memory")


def test_settings_that_name_them_are_taken_and_nothing_is_asked() -> None:
    def never() -> tuple[str, str]:
        raise AssertionError("asked")

    resolved = computing_of(LearnerSection(device="cuda", threads=3), ONE, never)
    assert resolved == ("cuda", 3, "", ())
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
