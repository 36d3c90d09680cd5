"""The command `task measure`: how well the policy of a model plays poker.

For Kuhn and Leduc: what it can lose, exactly. For any game: the chips that it wins per hand from the opponent of the
task, with an interval, over held-out hands that are played with sampled moves.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Literal, NamedTuple

from echo2.coordinator.calibration.own_engine import loaded_engine
from echo2.coordinator.environments.played_group import play
from echo2.coordinator.environments.task_host import LocalTask
from echo2.coordinator.run import chat_settings, model_folder
from echo2.coordinator.settings.training_config import RunSection
from echo2.engines.engine import Job, Sample
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.runtime.errors import LocalFault
from echo2.tasks import plugins, tokenizer
from echo2.tasks.chat import ChatTokenizer
from echo2.tasks.poker.exploitability import SMALL_GAMES
from echo2.tasks.poker.model_policy import AskedMoves, MeasuredPolicy, measure, questions
from echo2.tasks.poker.poker_task import PokerTask
from echo2.tasks.poker.winnings import Winnings, chips_per_hand
from echo2.tasks.task import Tokenizer
from echo2.tasks.turn_ends import Ends

AT_ONCE = 32
"""Hands that are played together."""

Template = Literal["plain", "chat"]


class MeasuredModel(NamedTuple):
    """A model to measure. `weights`: its snapshot. `template`: how prompts are written."""

    folder: Path
    weights: Path
    template: Template = "plain"

    @property
    def ends(self) -> Ends:
        """The tokens that end a turn. Raises `LocalFault`."""
        known = model_folder.facts(self.folder)
        return (known.eos, *known.other_ends)

    @property
    def text(self) -> Tokenizer:
        """The tokenizer. Raises `LocalFault`."""
        text = tokenizer.load(self.folder / "tokenizer.json", *self.ends)
        settings = chat_settings.settings_of(self.folder, RunSection(template=self.template), SERVED_KIND)
        return text if settings is None else ChatTokenizer(text, settings)


def model_of(folder: Path, weights: Path | None, template: Template) -> MeasuredModel:
    """Return a model. `weights`: a snapshot; None: the folder's. Raises `LocalFault`."""
    weights = weights or folder / model_folder.WEIGHTS
    model_folder.check_weights(weights)
    return MeasuredModel(folder, weights, template)


def poker_task(name: str) -> PokerTask:
    """Return the task of this name. Raises `LocalFault` if it is no game of poker."""
    try:
        task = plugins.find(name)
    except plugins.PluginFault as fault:
        raise LocalFault(str(fault)) from fault
    if not isinstance(task, PokerTask):
        raise LocalFault(f"{name} is no game: poker:kuhn, poker:leduc and poker:holdem are measured")
    return task


def measure_policy(task: PokerTask, model: MeasuredModel, numbers: int) -> MeasuredPolicy | None:
    """Return what the policy of a model can lose; None for a game too large for that. `numbers`: numbers of hands that
    are asked for. Raises `LocalFault`."""
    if task.rules.name not in SMALL_GAMES:
        return None
    asked = questions(task.rules.name, model.text, numbers)
    told = asyncio.run(_move_logprobs(model, asked))
    return measure(task.rules.name, asked, told)


def measure_winnings(task: PokerTask, model: MeasuredModel, hands: int, limit: int) -> Winnings:
    """Return the chips per hand that a model wins from the task's opponent in the first held-out hands. `limit`: most
    sampled tokens of a hand. Raises `LocalFault`."""
    if not 2 <= hands <= task.size("heldout"):
        raise LocalFault(f"{hands} hands cannot be played: choose 2 to {task.size('heldout')}")
    rewards = asyncio.run(_rewards(task, model, hands, limit))
    return chips_per_hand(rewards, task.rules.most)


async def _rewards(task: PokerTask, model: MeasuredModel, hands: int, limit: int) -> list[float]:
    ends, host, room = model.ends, LocalTask(task, model.text), model_folder.room_of(model.folder, limit)
    rewards = list[float]()

    async def reward_of(engine: EngineProcess, index: int) -> float:
        job = Job(
            prompt=await host.prompt("heldout", index), seeds=[hashlib.blake2b(b"%d" % index, digest_size=16).digest()],
            limit=limit, eos=ends[0], other_ends=ends[1:], task=task.name, task_version=task.version, split="heldout",
            index=index,
        )  # fmt: skip
        played = await play(engine, host, job, "heldout", room)
        (score,) = played.scores
        if score is None:
            raise LocalFault(f"hand {index} cannot be played: {played.faults[0]}")
        return score.reward

    async with loaded_engine(model.folder, model.weights, name="measure") as engine:
        for first in range(0, hands, AT_ONCE):
            some = range(first, min(hands, first + AT_ONCE))
            rewards += await asyncio.gather(*(reward_of(engine, index) for index in some))
    return rewards


async def _move_logprobs(model: MeasuredModel, asked: list[AskedMoves]) -> list[list[float]]:
    """Return the model's log-probabilities of the moves."""
    async with loaded_engine(model.folder, model.weights, name="measure") as engine:
        return [await _told_of(engine, model.ends[0], one) for one in asked]


async def _told_of(engine: EngineProcess, eos: int, asked: AskedMoves) -> list[float]:
    job = Job(
        prompt=asked.before, seeds=[bytes(16)] * len(asked.moves), limit=max(map(len, asked.moves)), eos=eos,
        task="poker", task_version=PokerTask.version, split="heldout", index=0, single_turn=True,
    )  # fmt: skip
    samples = [Sample(tokens=move, turns=[len(move)], logprobs=[0.0] * len(move)) for move in asked.moves]
    return [float(sum(score.logprobs)) for score in await engine.score(job, pack_samples(samples))]
