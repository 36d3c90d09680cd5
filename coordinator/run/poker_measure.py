"""The command `task measure`: what the policy of a model can lose in Kuhn or Leduc."""

import asyncio
from pathlib import Path

from coordinator.run import model_folder
from engines.engine import Job, Sample
from engines.messages import packed
from engines.process import EngineProcess
from runtime.errors import LocalFault
from tasks import plugins, tokenizer
from tasks.poker.exploitability import SMALL
from tasks.poker.model_policy import AskedMoves, MeasuredPolicy, measure, questions
from tasks.poker.poker_task import PokerTask


def measured(name: str, folder: Path, weights: Path | None, hands: int) -> MeasuredPolicy:
    """Return the measure of a model folder's policy. `weights`: a snapshot; None: the folder's. `hands`: numbers that
    are asked for. Raises `LocalFault`."""
    try:
        task = plugins.find(name)
    except plugins.PluginFault as fault:
        raise LocalFault(str(fault)) from fault
    if not isinstance(task, PokerTask) or task.rules.name not in SMALL:
        raise LocalFault(f"exploitability is measured for {' and '.join(f'poker:{game}' for game in SMALL)} alone")
    eos = model_folder.facts(folder).eos
    asked = questions(task.rules.name, tokenizer.load(folder / "tokenizer.json", eos), hands)
    told = asyncio.run(_told(folder, weights or folder / model_folder.WEIGHTS, eos, asked))
    return measure(task.rules.name, asked, told)


async def _told(folder: Path, weights: Path, eos: int, asked: list[AskedMoves]) -> list[list[float]]:
    """Return the model's log-probabilities of the moves."""
    async with EngineProcess(name="measure") as engine:
        await engine.probe()
        await engine.load(folder, weights)
        return [await _told_of(engine, eos, one) for one in asked]


async def _told_of(engine: EngineProcess, eos: int, asked: AskedMoves) -> list[float]:
    job = Job(
        prompt=asked.before, seeds=[bytes(16)] * len(asked.moves), limit=max(map(len, asked.moves)), eos=eos,
        task="poker", task_version=PokerTask.version, split="heldout", index=0, single_turn=True,
    )  # fmt: skip
    samples = [Sample(tokens=move, turns=[len(move)], logprobs=[0.0] * len(move)) for move in asked.moves]
    return [float(sum(score.logprobs)) for score in await engine.score(job, packed(samples))]
