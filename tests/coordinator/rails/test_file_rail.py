"""Files of payments: whole or absent, each payment in one of them, outcomes brought back by a person."""

import csv
from pathlib import Path

import pytest

from echo2.coordinator.rails.csv_file import cell, csv_format
from echo2.coordinator.rails.file_rail import RESULTS, FileRail
from echo2.coordinator.rails.rail import RailAnswer
from echo2.runtime.errors import LocalFault

NOW = 1_767_225_600_000  # 2026-01-01


def opened(folder: Path) -> FileRail:
    return FileRail(folder, csv_format("USD"), lambda: NOW)


async def test_a_payment_is_in_one_file_however_often_it_is_sent(tmp_path: Path) -> None:
    rail = opened(tmp_path)
    for _ in range(2):
        assert await rail.send("k1", "alice@example.org", 1234) == RailAnswer("taken")
    rail.close()
    again = opened(tmp_path)
    assert await again.send("k1", "alice@example.org", 1234) == RailAnswer("taken")
    assert await again.send("k2", "bob@example.org", 5) == RailAnswer("taken")
    again.close()
    first = (tmp_path / "payments-1.csv").read_bytes()
    assert first == b'"key","account","amount","currency"\r\n"k1","alice@example.org","12.34","USD"\r\n'
    second = (tmp_path / "payments-2.csv").read_text()
    assert "k1" not in second
    assert '"k2","bob@example.org","0.05","USD"' in second
    assert modes(tmp_path) == {0o600}


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def tear(journal: Path) -> None:
    """Leave what a crash leaves: no file of payments, and a torn line."""
    journal.with_name("payments-1.csv").unlink()
    with journal.open("ab") as file:
        file.write(b'{"key":"k2","acc')


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_a_file_that_was_handed_on_never_changes(tmp_path: Path) -> None:
    rail = opened(tmp_path)
    await rail.send("k1", "alice@example.org", 1)
    rail.close()
    before = (tmp_path / "payments-1.csv").read_bytes()
    for number in range(2, 5):
        rail = opened(tmp_path)
        await rail.send(f"k{number}", "alice@example.org", 1)
        rail.close()
    assert (tmp_path / "payments-1.csv").read_bytes() == before


async def test_a_killed_process_leaves_each_acknowledged_payment_and_no_torn_one(tmp_path: Path) -> None:
    killed = opened(tmp_path)
    await killed.send("k1", "alice@example.org", 1)
    killed.close()
    tear(tmp_path / "rows-1.jsonl")
    rail = opened(tmp_path)
    assert modes(tmp_path) == {0o600}
    assert "payments-1.csv" in names(tmp_path)
    assert await rail.status("k1") == RailAnswer("taken")
    assert await rail.status("k2") == RailAnswer("absent")


async def test_another_amount_under_a_known_key_is_refused(tmp_path: Path) -> None:
    rail = opened(tmp_path)
    await rail.send("k1", "alice@example.org", 1)
    with pytest.raises(LocalFault, match="another account or amount"):
        await rail.send("k1", "alice@example.org", 2)
    rail.close()


def test_a_rail_without_payments_writes_no_file(tmp_path: Path) -> None:
    opened(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


async def test_outcomes_come_from_the_file_of_a_person(tmp_path: Path) -> None:
    rail = opened(tmp_path)
    for key in ("k1", "k2", "k3"):
        await rail.send(key, "alice@example.org", 100)
    rail.close()
    (tmp_path / RESULTS).write_text(
        "key,outcome,amount,reference\nk1,confirmed,1.00,b-17\nk2,returned,0.99,\nk1,confirmed,1.00,b-17\n"
    )
    rail = opened(tmp_path)
    assert await rail.status("k1") == RailAnswer("done", 100, reference="b-17")
    assert await rail.status("k2") == RailAnswer("returned", 99)
    assert await rail.status("k3") == await rail.cancel("k3") == RailAnswer("taken")


BAD_RESULTS = {
    "no header": "k1,confirmed,1.00,x\n",
    "one decimal": "key,outcome,amount,reference\nk1,confirmed,1.0,x\n",
    "a negative amount": "key,outcome,amount,reference\nk1,confirmed,-1.00,x\n",
    "NaN": "key,outcome,amount,reference\nk1,confirmed,NaN,x\n",
    "another outcome": "key,outcome,amount,reference\nk1,maybe,1.00,x\n",
    "too few cells": "key,outcome,amount,reference\nk1,confirmed\n",
    "two outcomes": "key,outcome,amount,reference\nk1,confirmed,1.00,x\nk1,returned,1.00,x\n",
    "an open quote": 'key,outcome,amount,reference\n"k1,confirmed,1.00,x\n',
}


@pytest.mark.parametrize("text", BAD_RESULTS.values(), ids=BAD_RESULTS.keys())
def test_a_wrong_file_of_outcomes_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / RESULTS).write_text(text)
    with pytest.raises(LocalFault, match=RESULTS):
        opened(tmp_path)


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows-1.jsonl").write_text('{"at":1}\nnonsense\n')
    with pytest.raises(LocalFault, match=r"rows-1\.jsonl is damaged"):
        opened(tmp_path)


RISKY = [
    "=1+1",
    " =1+1",
    "\n=1+1",
    "\t=1+1",
    "\r\n @x",
    "+1",
    "-1",
    "\u00a0=1",
    "\u200b=1",
    "\uff1d1",
    "\tx",
    "|x",
    "%x",
]


@pytest.mark.parametrize("text", RISKY)
def test_no_cell_is_run_as_a_formula(text: str) -> None:
    assert cell(text).startswith("\"'")
    assert next(csv.reader([cell(text).replace("\n", " ").replace("\r", " ")]))[0].startswith("'")


def test_a_quote_ends_no_cell() -> None:
    assert next(csv.reader([cell('a","=1+1') + "," + cell("b")])) == ['a","=1+1', "b"]
