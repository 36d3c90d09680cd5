"""An engine without a host: its groups, or the first error."""

from pathlib import Path

import pytest

from benchmarks.plays.direct import generate, generate_all
from echo2.engines.engine import EngineError, Job
from tests.support.bigram import BigramEngine, random_table, write_table


def job(index: int, samples: int = 2) -> Job:
    return Job(
        prompt=[2, 3], seeds=[bytes([index, number]) * 8 for number in range(samples)], limit=4 + index, eos=1,
        task="reverse", task_version=1, split="train", index=index,
    )  # fmt: skip


def test_groups_come_back_in_the_order_of_the_jobs(tmp_path: Path) -> None:
    engine = BigramEngine()
    engine.load(tmp_path, write_table(tmp_path / "table.safetensors", random_table(1)).path)
    jobs = [job(index) for index in (5, 0, 3)]
    assert generate_all(engine, jobs) == [generate(engine, one) for one in jobs]
    assert generate_all(engine, []) == []


def test_the_first_error_is_raised_and_no_group_is_left_under_way(tmp_path: Path) -> None:
    engine = BigramEngine()
    with pytest.raises(EngineError, match="no weights"):
        generate_all(engine, [job(0), job(1)])
    assert (engine.rows.running, engine.rows.waiting) == (0, 0)
