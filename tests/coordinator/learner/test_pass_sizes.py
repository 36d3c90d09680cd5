"""A step whose passes run out of memory is made in smaller ones, and made again in the same ones."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec import structs

from echo2.coordinator.learner import model, pass_memory, step, trainer
from echo2.coordinator.learner.checkpoints import journal
from echo2.coordinator.learner.messages import Export, Hyper
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.pass_memory import PassMemory
from echo2.coordinator.learner.pass_sizes import PassSizes, TooLittleMemory
from echo2.coordinator.learner.trainer import LocalTrainer
from tests.support.tiny_learner import Main, ask, batch, lack_memory

HYPER = Hyper(warmup_steps=0, learning_rate=1e-3, minibatches=2, microbatch_tokens=48)


def made(folder: Path, sizes: PassSizes, lacking: str = "", hyper: Hyper = HYPER) -> dict[str, torch.Tensor]:
    """Make a step; return its state and metrics. `lacking`: where passes of more than 24 tokens lack memory."""
    policy = model.load(folder, "cpu")
    optimiser = Optimiser(policy, hyper)
    if lacking:
        lack_memory(policy, 24, lacking)
    metrics = step.train_step(policy, optimiser, batch(1, groups=4), hyper, steps=0, sizes=sizes)
    return {**optimiser.tensors(), **{name: torch.tensor(value) for name, value in metrics.items()}}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.slow_but("forward")
def test_a_pass_that_runs_out_of_memory_is_repeated_with_half_the_tokens(model_folder: Path, where: str) -> None:
    sizes = PassSizes(tokens=48)
    halved = made(model_folder, sizes, where)
    assert (sizes.used, sizes.halvings) == ([48, 48, 24, 24], 1), "passes without gradient had enough"
    assert equal(halved, made(model_folder, PassSizes([48, 48, 24, 24]))), "nothing is left of the broken pass"
    one = structs.replace(HYPER, minibatches=1)
    small = made(model_folder, PassSizes(tokens=24), hyper=structs.replace(one, microbatch_tokens=24))
    assert equal(made(model_folder, PassSizes(tokens=96), where, one), small)


@pytest.mark.slow
def test_a_rollout_is_never_split_and_what_does_not_fit_alone_is_a_fault_of_the_machine(model_folder: Path) -> None:
    whole = made(model_folder, PassSizes(tokens=48))
    single = PassSizes(tokens=1)
    alone = made(model_folder, single)
    assert single.used == [1] * 4, "longer rollouts go one by one"
    assert whole.keys() == alone.keys()
    policy = model.load(model_folder, "cpu")
    lack_memory(policy, 2, "forward")
    optimiser = Optimiser(policy, HYPER)
    before = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
    with pytest.raises(TooLittleMemory, match=r"one rollout of 10 tokens.*learner.recompute to always"):
        step.train_step(policy, optimiser, batch(1), HYPER, steps=0)
    assert equal(before, dict(optimiser.tensors()))
    assert optimiser.gradients() == {}


def test_a_step_that_is_made_again_halves_nothing() -> None:
    sizes = PassSizes([48, 24])
    assert sizes.tokens == 48
    sizes.finish_pass()
    sizes.begin(1000)
    assert sizes.tokens == 24
    with pytest.raises(TooLittleMemory, match="made in passes of 24 tokens and is to be made again"):
        sizes.halve(1)


def lacking_session(main: Main) -> None:
    """Make a step whose passes of more than 24 tokens run out of memory, and one after it."""
    main.checkpoint_share = 1e-9
    session = main.open()
    assert isinstance(session._trainer, LocalTrainer)
    lack_memory(session._trainer._model, 24, "backward")
    main.step(session, 1)
    main.step(session, 2)


def test_the_journal_has_the_sizes_and_the_steps_are_made_again_with_them(tmp_path: Path, model_folder: Path) -> None:
    main = Main(tmp_path, model_folder, HYPER, keep=10)
    lacking_session(main)
    paths = sorted((tmp_path / "journal").glob("entry-*"))
    assert [passes for path in paths for _, _, passes in journal._read(path).steps] == [[48, 48, 24, 24], [24] * 4]
    given = []
    with pytest.MonkeyPatch.context() as patched:
        own = LocalTrainer.step

        def seen(self: LocalTrainer, of: object, steps: int, sizes: PassSizes) -> dict[str, float]:
            given.append(sizes.given)
            return own(self, of, steps, sizes)  # type: ignore[arg-type]

        patched.setattr(LocalTrainer, "step", seen)
        session = main.open()
    assert given == [[48, 48, 24, 24], [24] * 4]
    assert session.answer_open().undone == ""
    assert session._trainer.save_snapshot(tmp_path / "remade").root == main.published[-1].root


@pytest.mark.slow
def test_a_learner_that_is_killed_behind_a_halved_step_makes_the_same_weights_again(
    tmp_path: Path, model_folder: Path
) -> None:
    command = [sys.executable, "-m", "tests.coordinator.learner.test_pass_sizes", str(tmp_path), str(model_folder)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    main = Main(tmp_path, model_folder, HYPER, keep=10)
    main.published = msgspec.msgpack.decode((tmp_path / "published").read_bytes(), type=list[Export])
    for number in (1, 2):
        ask(batch(number))
    session = main.open()
    assert (session.answer_open().step, session.answer_open().undone) == (2, "")
    assert main.reports[-1] == "2 steps made again, up to step 2"
    assert session._trainer.save_snapshot(tmp_path / "remade").root == main.published[-1].root


def test_a_pass_has_as_many_tokens_as_the_free_memory_holds_beside_the_head() -> None:
    memory = PassMemory(fixed=1000, token=10, row=100, rows=4)
    assert memory.bytes_of(2) == 1000 + 20 + 200
    assert memory.bytes_of(16) == 1000 + 160 + 400, "more rows than the head computes at once take no more"
    assert memory.fitting(64, 10_000) == 64
    assert memory.fitting(64, 1900) == 16
    assert memory.fitting(64, 10) == 1


@pytest.mark.slow
def test_the_memory_of_a_pass_is_measured_on_a_card_and_bounds_the_passes(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card is a stand-in whose passes take 1,000 bytes and 10 for each token."""
    tokens: list[int] = []

    class Card:
        """Counts the bytes of the last pass of the layers."""

        def reset_peak_memory_stats(self, device: torch.device) -> None:
            tokens.clear()

        def memory_allocated(self, device: torch.device) -> int:
            return 7

        def max_memory_allocated(self, device: torch.device) -> int:
            return 7 + 1000 + 10 * tokens[-1]

    monkeypatch.setattr(pass_memory, "MEASURED_KINDS", ("cpu",))
    monkeypatch.setattr(pass_memory, "PROBE_TOKENS", (8, 24))
    monkeypatch.setattr(torch, "get_device_module", lambda device: Card())
    policy = model.load(model_folder, "cpu")
    policy.get_input_embeddings().register_forward_hook(lambda module, inputs, _: tokens.append(inputs[0].numel()))
    optimiser = Optimiser(policy, HYPER)
    memory = pass_memory.measure(policy, optimiser)
    words, width = model.head_of(policy).linear.weight.shape
    assert (memory.token, memory.row) == (10, 8 * words)
    assert memory.fixed == 1000 + 4 * words * width, "gradients in float32 are the sums themselves"
    assert optimiser.gradients() == {}
    assert all(one.grad is None for one in policy.parameters())

    monkeypatch.setattr(trainer, "measure", lambda policy, optimiser: PassMemory(0, 10, 0, 1))
    monkeypatch.setattr(pass_memory, "free_memory", lambda device: 300)
    order = Main(model_folder, model_folder, HYPER).order()
    own = LocalTrainer(structs.replace(order, limit=31))
    with pytest.raises(TooLittleMemory, match="one rollout of 31 tokens"):
        own.start(HYPER, None, None)
    own = LocalTrainer(structs.replace(order, limit=30))
    own.start(HYPER, None, None)
    sizes = PassSizes()
    own.step(batch(2), 0, sizes)
    assert sizes.used == [24] * 4, "48 tokens do not fit into nine tenths of what is free"

    monkeypatch.setattr(pass_memory, "free_memory", lambda device: 150)  # another program takes the half meanwhile
    sizes = PassSizes()
    own.step(batch(3), 1, sizes)
    assert set(sizes.used) == {12}


if __name__ == "__main__":
    last = Main(Path(sys.argv[1]), Path(sys.argv[2]), HYPER, keep=10)
    lacking_session(last)
    (last.folder / "published").write_bytes(msgspec.msgpack.encode(last.published))
    os.kill(os.getpid(), signal.SIGKILL)
