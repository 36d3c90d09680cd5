"""The groups that wait in a child to be scored, and which of them share a pass. Pure.

1. Groups are taken in the order of their arrival, whole, up to the tokens that fill a pass (`ScoresTogether`). One
   group is always taken, however large.
2. A group that arrives during a pass waits for the next. So passes grow with the load, and a group alone never waits.
3. A caller that is cancelled takes its group back, unless its pass is running.
"""

from collections.abc import Sequence

from echo2.engines.engine import Engine, GroupToScore, SampleScore, ScoresTogether


class ScoreQueue:
    """Groups by ticket, which names each of them."""

    def __init__(self) -> None:
        self._waiting: dict[int, GroupToScore] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, ticket: int, group: GroupToScore) -> None:
        self._waiting[ticket] = group

    def cancel(self, ticket: int) -> None:
        """Drop a group; nothing happens if it does not wait."""
        self._waiting.pop(ticket, None)

    def run_pass(self, engine: Engine) -> list[tuple[int, list[SampleScore] | Exception]]:
        """Score one pass of groups; return the outcome of each."""
        taken = self._take(engine.pass_tokens if isinstance(engine, ScoresTogether) else 0)
        return list(zip(taken, _outcomes(engine, list(taken.values())), strict=True))

    def _take(self, most: int) -> dict[int, GroupToScore]:
        taken: dict[int, GroupToScore] = {}
        tokens = 0
        for ticket, group in self._waiting.items():
            tokens += group.tokens
            if taken and tokens > most:
                break
            taken[ticket] = group
        for ticket in taken:
            del self._waiting[ticket]
        return taken


def _outcomes(engine: Engine, groups: Sequence[GroupToScore]) -> Sequence[list[SampleScore] | Exception]:
    try:
        return engine.score_groups(groups) if isinstance(engine, ScoresTogether) else [engine.score(*groups[0])]
    except Exception as error:
        return [error] * len(groups)
