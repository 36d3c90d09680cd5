"""The pure parts of benchmarks/transport/__main__.py, and one candidate in two processes."""

from pathlib import Path

import pytest

pytest.importorskip("libp2p")

from benchmarks.transport import __main__ as transport
from benchmarks.transport.ends import CHUNK, TAKEN, TransferTurn, chunk, running, write_chunks


def measured_turn(wall: float, cpu: float = 1.0) -> TransferTurn:
    return TransferTurn(nbytes=100_000_000, wall=wall, holder_cpu=cpu / 4, taker_cpu=cpu * 3 / 4)


def test_a_turn_says_megabytes_by_the_clock_and_the_cpu_of_both_ends_for_a_gigabyte() -> None:
    assert measured_turn(wall=0.5).speed() == pytest.approx(200)
    assert measured_turn(wall=0.5, cpu=0.3).cost() == pytest.approx(3.0)


def test_a_ratio_is_the_median_of_the_ratios_within_turns() -> None:
    turns = {
        "ours": [measured_turn(1.0), measured_turn(2.0), measured_turn(8.0)],
        "other": [measured_turn(1.0), measured_turn(4.0), measured_turn(4.0)],
    }
    assert transport.ratio(turns, "ours", "other", TransferTurn.speed) == pytest.approx(1.0)


def test_each_bar_is_claimed_against_the_anchor_that_does_the_same_work() -> None:
    speeds = {name: 100.0 for name in transport.CANDIDATES}
    speeds |= {transport.STREAM: 95.0, transport.HTTPS_STORED: 50.0}
    turns = {name: [measured_turn(wall=1 / speed, cpu=1 / speed)] for name, speed in speeds.items()}
    claimed = {(claim.name, claim.anchor): (claim.ratio, claim.ok) for claim in transport.claims(turns)}
    assert claimed == {
        ("stream throughput", transport.HTTPS): (pytest.approx(0.95), True),
        ("stream CPU", transport.HTTPS): (pytest.approx(1 / 0.95), True),
        ("stream throughput", transport.STOCK): (pytest.approx(0.95), False),
        ("fetch throughput", transport.HTTPS_STORED): (pytest.approx(2.0), True),
        ("fetch CPU", transport.HTTPS_STORED): (pytest.approx(0.5), True),
    }


def test_every_candidate_has_a_row_of_medians() -> None:
    (row,) = transport.rows({"ours": [measured_turn(1.0), measured_turn(0.5), measured_turn(0.2)]})
    assert row == ["ours", *map(pytest.approx, (200.0, 500.0, 2.5, 7.5, 10.0))]


def test_chunks_that_are_sent_differ(tmp_path: Path) -> None:
    write_chunks(tmp_path, 3)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == chunk(0) + chunk(1) + chunk(2)
    assert len({chunk(0), chunk(1), chunk(2)}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", transport.CANDIDATES)
def test_a_candidate_takes_turns(name: str, tmp_path: Path) -> None:
    write_chunks(tmp_path, 4)
    (tmp_path / TAKEN).mkdir()
    with running(transport.CANDIDATES[name], tmp_path, 4) as take_turn:
        turns = [take_turn(), take_turn()]
    for one in turns:
        assert one.nbytes == 4 * CHUNK
        assert one.wall > 0
        assert one.holder_cpu + one.taker_cpu > 0
