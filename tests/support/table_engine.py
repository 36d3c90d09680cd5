"""An engine whose model is a table and whose places hold what a real backend's do, for tests of continuous batching."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from echo2.engines.batch.continuous_batch import Chosen, ContinuousBatch, FirstToken, NextToken, OutOfMemory
from echo2.engines.batch.row_limit import RowLimit
from echo2.engines.engine import Job
from tests.support.bigram import BigramEngine, random_table, write_table


def job(index: int, samples: int = 3, limit: int = 6, prompt: Sequence[int] = (2, 3), **fields: Any) -> Job:
    return Job(
        prompt=list(prompt), seeds=[bytes([index, number]) * 8 for number in range(samples)], limit=limit, eos=1,
        task="reverse", task_version=1, split="train", index=index, **fields,
    )  # fmt: skip


class Table(BigramEngine):
    """A table whose places hold what a real backend's do: each row's last token, which `decode` checks. `rows_most`:
    more rows are out of memory. `broken`: last tokens after which nothing is finite. `prefilled`: tokens per call.
    `widths`: rows per step."""

    def __init__(self, *, rows_most: int = 10**6, overlap: bool = False, limit: RowLimit | None = None) -> None:
        super().__init__()
        self._batch = ContinuousBatch(self, self._rollouts, limit or RowLimit(), lambda: 0.0)
        self.rows_most, self.overlap = rows_most, overlap
        self.broken: set[int] = set()
        self.prefilled: list[list[int]] = []
        self.widths: list[int] = []
        self._last: list[int] = []

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        self.prefilled.append([len(prompt) for prompt in prompts])
        return super().prefill(prompts)

    def extend(self, prompt: list[int], tokens: Sequence[int]) -> None:
        self.prefilled.append([len(tokens)])
        super().extend(prompt, tokens)

    def decode(self, rows: Sequence[NextToken], first: Sequence[FirstToken[list[int]]]) -> Callable[[], Chosen]:
        assert len(rows) == len(self._last)
        self.widths.append(len(rows) + len(first))
        if len(rows) + len(first) > self.rows_most:
            raise OutOfMemory("the table is full")
        fed = [row.token if row.token is not None else last for row, last in zip(rows, self._last, strict=True)]
        read = super().decode([row._replace(token=token) for row, token in zip(rows, fed, strict=True)], first)
        chosen = read()
        fed += [one.prompt[0] for one in first]
        self._last = list(chosen.tokens)
        logprobs = [
            math.nan if token in self.broken else value for token, value in zip(fed, chosen.logprobs, strict=True)
        ]
        return lambda: Chosen(chosen.tokens, logprobs)

    def resume(self, prompt: list[int]) -> None:
        self._last.append(-1)

    def park(self, place: int, length: int) -> list[int]:
        assert 0 <= place < len(self._last)
        return [-1]

    def vacate(self, place: int, last: int) -> None:
        assert last == len(self._last) - 1
        self._last[place] = self._last[last]
        self._last.pop()

    def reset(self) -> None:
        self._last = []


def table(folder: Path, **fields: Any) -> Table:
    engine = Table(**fields)
    engine.load(folder, write_table(folder / "table.safetensors", random_table(4)).path)
    return engine
