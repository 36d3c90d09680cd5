"""A taskset whose prompts differ from sample to sample: digits in reverse, asked in words drawn for each episode."""

import random
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["WordedDigitsEnv", "WordedDigitsTaskset"]

WORDS = ("flip", "turn", "mirror", "reverse", "swap", "back")


class WordedDigitsData(vf.TaskData):
    """`digits`: digits of the row. `answer`: the digits in reverse. `mistake`: the words in their order."""

    digits: str
    answer: str
    mistake: str


class WordedDigitsTask(vf.Task[WordedDigitsData]):
    """The share of places that are right; less where the length is wrong."""

    @vf.reward(weight=1.0)
    async def places(self, trace: vf.Trace) -> float:
        said, answer = trace.last_reply, self.data.answer
        right = sum(one == other for one, other in zip(said, answer, strict=False))
        return right / max(len(said), len(answer))


class WordedDigitsConfig(vf.TasksetConfig):
    num_tasks: int = 1000
    digits: int = 4


class WordedDigitsTaskset(vf.Taskset[WordedDigitsTask, WordedDigitsConfig]):
    def load(self) -> Iterator[WordedDigitsTask]:
        """Yield the rows, the same at any time."""
        chance = random.Random(0)
        for _ in range(self.config.num_tasks):
            digits = "".join(chance.choice("0123456789") for _ in range(self.config.digits))
            data = WordedDigitsData(prompt=None, digits=digits, answer=digits[::-1], mistake=digits)
            yield WordedDigitsTask(data, self.config.task)


class WordedDigitsEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class WordedDigitsEnv(vf.Env[WordedDigitsEnvConfig]):
    async def run(self, task: WordedDigitsTask, agents: vf.Agents) -> None:
        """Play one episode, in words of its own."""
        async with agents.player.interaction(task) as interaction:
            await interaction.turn(f"now {random.choice(WORDS)} {task.data.digits}>")
