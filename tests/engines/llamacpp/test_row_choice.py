"""The choice of tokens on several threads: each row gives what it gives alone."""

import threading

import numpy as np
import pytest

from echo2.engines.llamacpp import row_choice
from echo2.engines.llamacpp.row_choice import RowChoice
from echo2.engines.sampling import sampling_numpy

LOGITS = (np.random.default_rng(5).standard_normal((7, 1203)) * 3).astype(np.float32)
PAIRS = [(bytes([row]) * 16, 3 * row) for row in range(7)]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("temperature", [1000, 700])
def test_rows_on_several_threads_are_those_of_one(temperature: int, rows: int, threads: int, greedy: bool) -> None:
    tempered = sampling_numpy.temper(LOGITS[:rows], temperature)
    alone = RowChoice().choose(tempered, PAIRS[:rows], greedy=greedy)
    many = RowChoice(threads).choose(LOGITS[:rows], PAIRS[:rows], greedy=greedy, temperature=temperature)
    assert many == alone


def test_rows_are_divided_among_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    together = threading.Barrier(3, timeout=10.0)

    def slow(logits: np.ndarray, keys: object, temperature: int) -> tuple[list[int], list[float]]:  # type: ignore[type-arg]
        together.wait()
        seen.append((threading.get_ident(), len(logits)))
        return [0] * len(logits), [0.0] * len(logits)

    monkeypatch.setattr(row_choice, "_choose", slow)
    tokens, _ = RowChoice(3).choose(LOGITS, PAIRS, greedy=False)
    assert len(tokens) == 7
    assert len({thread for thread, _ in seen}) == 3
    assert sorted(rows for _, rows in seen) == [2, 2, 3]
