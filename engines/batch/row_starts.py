"""The rows that wait for a place in a continuous batch, and what is computed for them before they get one. Pure.

Rules
1. A *start* is a sequence of tokens that one or more rows go on from. The rows of a group share one, its prompt; a row
   that goes on behind tokens of its own has a start alone. The tokens are computed once.
2. Starts are served in the order in which they came. Each gets its rows their places before the next one's.
3. Tokens are computed in parts of at most `PROMPT_PART` a step, so that the rows that run never wait long.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar

from echo2.engines.batch.open_group import Group
from echo2.engines.batch.rollout_state import RolloutState

PROMPT_PART: Final = 512
"""Most tokens of starts per step while rows run, and the size of a part of a long one."""

P = TypeVar("P")


class Row:
    """A rollout with a place. `begun`: number of the next token to begin: one more than those taken, while a step was
    not read yet. `left`: whether it had to leave the place: a step that was not read then is none of its rollout's."""

    def __init__(self, group: Group, number: int) -> None:
        self.group, self.number = group, number
        self.begun = self.state.position
        self.left = False

    @property
    def state(self) -> RolloutState:
        return self.group.states[self.number]

    @property
    def gone(self) -> bool:
        """Whether it needs its place no longer."""
        return self.left or self.group.outcome is not None or self.state.ended or self.state.parked


class Start(Generic[P]):
    """Tokens that rows go on from (rule 1). `numbers`: numbers of the rows that wait. `tokens`: those to compute yet.
    `prompt`: what is computed of the start; None: nothing. `resumes`: its row goes on like one that never left its
    place: its last token is not computed yet, and goes into the next step."""

    def __init__(self, group: Group, numbers: Sequence[int], tokens: Sequence[int], prompt: P | None = None) -> None:
        self.group, self.numbers, self.prompt = group, deque(numbers), prompt
        self.tokens = list(tokens)
        self.resumes = prompt is not None and not tokens

    @property
    def part(self) -> list[int]:
        """The tokens that are computed next."""
        return self.tokens[:PROMPT_PART]

    def note_progress(self, prompt: P, tokens: int) -> None:
        """Note that `tokens` more are computed."""
        self.prompt = prompt
        del self.tokens[:tokens]


class StartQueue(Generic[P]):
    """The starts whose rows wait, in order."""

    def __init__(self) -> None:
        self._starts: deque[Start[P]] = deque()

    def __iter__(self) -> Iterator[Start[P]]:
        return iter(self._starts)

    @property
    def waiting(self) -> int:
        """The number of rows that wait."""
        return sum(len(start.numbers) for start in self._starts)

    def put(self, start: Start[P]) -> None:
        self._starts.append(start)

    def begin_group(self, group: Group) -> None:
        """Add the starts of a group's rollouts that are neither ended nor parked: those without tokens go on from the
        prompt together, each other one behind its own tokens."""
        states = [(number, one) for number, one in enumerate(group.states) if not (one.ended or one.parked)]
        fresh = [number for number, one in states if not one.tokens]
        if fresh:
            self.put(Start(group, fresh, group.job.prompt))
        for number, one in states:
            if one.tokens:
                self.put(Start(group, [number], [*group.job.prompt, *one.tokens]))

    def parts(self, room: int) -> list[Start[P]]:
        """Return the starts of which a part is computed in this step (rule 3). `room`: free places."""
        parts, tokens = list[Start[P]](), 0
        for start in self._starts:
            if room <= 0 or (tokens and tokens + len(start.tokens) > PROMPT_PART):
                break
            room -= len(start.numbers)
            if start.tokens:
                parts.append(start)
                tokens += len(start.part)
        return parts

    def take(self, room: int) -> list[tuple[Start[P], Row]]:
        """Return the rows that get a place: those of the first starts, as far as they are computed (rule 2)."""
        rows = list[tuple[Start[P], Row]]()
        for start in self._starts:
            if start.tokens:
                break
            while start.numbers and len(rows) < room:
                rows.append((start, Row(start.group, start.numbers.popleft())))
        return rows

    def pop_placed(self) -> Iterator[Start[P]]:
        """Remove and yield the first starts whose rows all have their places."""
        while self._starts and not self._starts[0].numbers:
            yield self._starts.popleft()

    def remove(self, group: Group) -> list[Start[P]]:
        removed = [start for start in self._starts if start.group is group]
        self._starts = deque(start for start in self._starts if start.group is not group)
        return removed

    def clear(self) -> None:
        self._starts.clear()
