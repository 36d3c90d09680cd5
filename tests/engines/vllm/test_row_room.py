"""How many rows vLLM has room for: by real lengths and free blocks."""

import random

import pytest

from echo2.engines.vllm.row_room import RowRoom


def test_before_a_row_has_ended_the_worst_case_counts() -> None:
    assert RowRoom(16, 4096, 256).limit(8192, running=0, free=4096) == 8


@pytest.mark.parametrize(
    ("lengths", "running", "free", "rows"),
    [
        ([2048] * 256, 0, 4096, 32),
        ([2048] * 256, 20, 4096 - 20 * 64, 30),
        ([2048] * 256, 30, 100, 28),
        ([2048] * 256, 40, 10, 28),
        ([64], 16, 4096 - 16 * 40, 8),
        ([9000] * 256, 0, 4096, 8),
    ],
    ids=[
        "as many as memory holds of their length", "those under way are longer than half",
        "no block is free for one more", "more than there is room for", "the first that ended is short",
        "never longer than the longest",
    ],
)  # fmt: skip
def test_rows_by_what_ended(lengths: list[int], running: int, free: int, rows: int) -> None:
    room = RowRoom(16, 4096, 256)
    for length in lengths:
        room.on_end(length)
    assert room.limit(8192, running, free) == rows


def test_the_owners_bound_and_one_row_at_least() -> None:
    assert RowRoom(16, 4096, 3).limit(64, running=0, free=4096) == 3
    assert RowRoom(16, 4, 256).limit(8192, running=0, free=0) == 1


def test_a_card_is_full_and_hardly_ever_over_full() -> None:
    """Log-normal lengths with a mean of 2,500 of 8,192 tokens; blocks of 16, memory of 8 rows of the longest."""
    dice, room = random.Random(1), RowRoom(16, 4096, 256)
    rows: list[list[int]] = []
    used_share, short = 0.0, 0
    for step in range(60_000):
        used = sum(-(-at // 16) for at, _ in rows)
        while len(rows) < room.limit(8192, len(rows), max(0, 4096 - used)):
            rows.append([100, 100 + min(8092, int(dice.lognormvariate(7.5, 0.8)))])
        for row in rows:
            row[0] += 1
        for row in [one for one in rows if one[0] >= one[1]]:
            room.on_end(row[1])
            rows.remove(row)
        if step >= 10_000:
            used_share += min(used, 4096) / 4096 / 50_000
            short += used > 4096
    assert used_share > 0.75
    assert short / 50_000 < 0.05
