import os
import subprocess
import sys
import time

import pytest

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim, Measured


@pytest.mark.parametrize(
    ("claim", "closing_line"),
    [
        (Claim("node", 0.9, "the bare loop", 0.9), "node: ratio 0.900 against the bare loop, bar 0.9: ok"),
        (Claim("node", 0.8999, "the bare loop", 0.9), "node: ratio 0.900 against the bare loop, bar 0.9: short"),
        (Claim("size", 0.5, "full", 0.5, at_most=True), "size: ratio 0.500 against full, bar 0.5: ok"),
        (Claim("size", 0.51, "full", 0.5, at_most=True), "size: ratio 0.510 against full, bar 0.5: short"),
    ],
)
def test_a_claim_closes_with_one_line_that_a_script_can_read(claim: Claim, closing_line: str) -> None:
    assert claim.closing_line() == closing_line


def test_one_claim_that_is_short_fails_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Claim("a", 2.0, "b", 1.0), Claim("c", 0.5, "d", 1.0)
    assert bench.close([good]) == 0
    assert bench.close([good, bad]) == 1
    assert bench.close([]) == 1, "nothing was measured"
    assert capsys.readouterr().out.splitlines()[-1] == bad.closing_line()


def test_the_ratio_is_of_runs_that_were_made_side_by_side() -> None:
    # The machine slows down for both in the second turn, for the anchor alone in the third.
    subject = [Measured(20, 1, 1), Measured(20, 4, 4), Measured(20, 1, 1)]
    anchor = [Measured(10, 1, 1), Measured(10, 4, 4), Measured(10, 8, 8)]
    assert bench.ratio(subject, anchor) == 2.0


def test_candidates_take_turns_after_one_unmeasured_turn() -> None:
    order: list[str] = []

    def candidate(name: str) -> bench.Candidate:
        def run() -> Measured:
            order.append(name)
            return Measured(len(order), 1, 1)

        return run

    measured = bench.take_turns({"a": candidate("a"), "b": candidate("b")}, 2)
    assert order == ["a", "b"] * 3
    assert [run.work for run in measured["a"]] == [3, 5]


def test_sleep_costs_no_cpu_time_and_work_does() -> None:
    asleep = bench.timed(lambda: time.sleep(0.05) or 1.0)()
    awake = bench.timed(lambda: float(sum(range(2_000_000))))()
    assert asleep.wall >= 0.05
    assert asleep.cpu < 0.02
    assert awake.cpu > asleep.cpu


def test_the_cpu_time_of_a_process_counts_its_children() -> None:
    burn = "t = __import__('time'); e = t.process_time() + 0.2\nwhile t.process_time() < e: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print('done'); input()"
    process = subprocess.Popen([sys.executable, "-uc", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"done"
        assert bench.cpu_of(process.pid) >= 0.2
    finally:
        process.communicate(b"\n")
    assert bench.cpu_of(os.getpid()) > 0
