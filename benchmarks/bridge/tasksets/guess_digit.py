"""A taskset of up to three turns: guess a digit, told after each wrong guess whether it is higher or lower."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["GuessDigitEnv", "GuessDigitTaskset"]

GUESSES = 3


class GuessDigitData(vf.TaskData):
    """`answer`: the digit."""

    answer: str


class GuessDigitTask(vf.Task[GuessDigitData]):
    """1 for the digit at the first guess, a quarter less for each further one; 0 without it."""

    @vf.reward(weight=1.0)
    async def guessed(self, trace: vf.Trace) -> float:
        said = [(message.content or "").strip() for message in trace.assistant_messages]
        return 1.0 - 0.25 * said.index(self.data.answer) if self.data.answer in said else 0.0


class GuessDigitConfig(vf.TasksetConfig):
    num_tasks: int = 1000


class GuessDigitTaskset(vf.Taskset[GuessDigitTask, GuessDigitConfig]):
    def load(self) -> Iterator[GuessDigitTask]:
        """Yield the rows: the digit is that of a number's units, times three."""
        for number in range(self.config.num_tasks):
            data = GuessDigitData(prompt=f"guess {number}>", answer=str(3 * number % 10))
            yield GuessDigitTask(data, self.config.task)


class GuessDigitEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessDigitEnv(vf.Env[GuessDigitEnvConfig]):
    async def run(self, task: GuessDigitTask, agents: vf.Agents) -> None:
        """Play one episode."""
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(GUESSES - 1):
                said = segment.last_reply.strip()
                if segment.terminated or said == task.data.answer:
                    break
                segment = await interaction.turn("higher>" if said < task.data.answer else "lower>")
