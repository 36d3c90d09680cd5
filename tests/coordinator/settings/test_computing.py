"""Device and threads that the settings leave to the machine."""

import pytest

from echo2.coordinator.settings import computing
from echo2.coordinator.settings.computing import Computing, computing_of
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.runtime.usable_cores import usable_cores


def one_gpu() -> tuple[str, str]:
    return "cuda:1", "a card: most free memory of 2 GPUs"


def test_auto_is_the_machines_device_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    resolved = computing_of(LearnerSection(), one_gpu)
    assert resolved == ("cuda:1", usable_cores(), "a card: most free memory of 2 GPUs")
    assert resolved.sentence().startswith("learner and scorer compute on cuda:1 (a card: most free memory")


def test_settings_that_name_them_are_taken_and_nothing_is_asked() -> None:
    def never() -> tuple[str, str]:
        raise AssertionError("asked")

    resolved = computing_of(LearnerSection(device="cuda", threads=3), never)
    assert resolved == ("cuda", 3, "")
    assert resolved.sentence() == "learner and scorer compute on cuda, each process with 3 threads"


def test_ranks_divide_the_cores_and_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    resolved = computing_of(LearnerSection(ranks=2), one_gpu)
    assert (resolved.device, resolved.threads) == ("cuda", max(1, usable_cores() // 2))


def test_demos_and_tests_compute_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert computing_of(LearnerSection(), one_gpu).threads == 1
    assert Computing("cpu", 1, "").sentence().endswith("with 1 thread")


@pytest.mark.slow
def test_pytorch_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    device, why = computing.device_by_torch()
    assert device
    assert why
    monkeypatch.setattr(computing, "PROGRAM", "raise SystemExit('no driver')")
    assert computing.device_by_torch() == ("cpu", "PyTorch found no device: no driver")
