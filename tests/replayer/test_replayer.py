"""The second replayer agrees with the product, every byte of the state: on generated histories, on the design's exact
examples, and on exports. It names the entry that was changed."""

import ast
import gzip
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator.command_line.ledger_app import ledger_app
from echo2.coordinator.database.database import Database
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.ledger_files.stored_state import of_tables
from echo2.coordinator.market.market_replay import ReplayedMarket, market_of
from echo2.coordinator.run.setup import Run
from echo2.ledger.export_files import SUMS, sums
from echo2.ledger.ledger_audit import LedgerWalk
from echo2.ledger.ledger_entries import Entry, Tampered, canonical, chain_hash
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support.export_cases import exports
from tests.support.generated_ledger import START, GeneratedLedger, memory
from tests.support.market_examples import MARKETS
from tests.support.market_export import heads_over, market_run, write_history
from tests.support.paths import ROOT
from tests.support.replay_cases import examples, fixed_run, history_of, paying_seeds
from tests.support.run_folders import make_run, write_model

REPLAYER = ROOT / "tests" / "replayer"
sys.path.insert(0, str(REPLAYER))

from market_rules import Market  # noqa: E402
from mutations import load  # noqa: E402
from replay import Replay, replayed, roots_of  # noqa: E402

Row = tuple[bytes, bytes]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    return make_run(folder / "run", write_model(folder / "model"))


def agree(run: Run, entries: Iterable[Entry], market: bool) -> None:
    first = LedgerReplay(run.chain, ReplayedMarket(run.id) if market else None)
    second = Replay(roots_of(list(run.roots)), Market(run.id) if market else None)
    for entry in entries:
        first.take(entry)
        second.take(canonical(*entry[:6]), entry.hash)
    assert second.state().encode() == first.state().as_bytes()


def agree_on(run: Run, seed: int) -> None:
    market = seed % 5 != 0
    with memory() as database:
        history = GeneratedLedger(seed, database, run.id, run.keys.ledger, market=market).write(260)
        agree(run, history.ledger.entries(), market)


@pytest.mark.parametrize("seed", range(40))
def test_both_replayers_agree_on_generated_histories(run: Run, seed: int) -> None:
    agree_on(run, seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10))
def test_both_replayers_agree_on_a_thousand_histories(run: Run, hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        agree_on(run, seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow_but("0")
def test_both_replayers_agree_on_every_entry_that_was_changed(run: Run, seed: int) -> None:
    """Key, time, postings and each field of the facts, of one entry of each kind; also where all else follows."""
    case = history_of(run, seed, 200, load, each=1)
    assert len(case.changed) > 300
    assert case.differences(load()["replay"]) == []


@pytest.mark.slow
def test_both_replayers_agree_on_every_entry_about_payments_that_was_changed(run: Run) -> None:
    case = history_of(run, next(paying_seeds(run, 300)), 300, load, each=1)
    assert any(one.name.startswith("payout.restored: plan") for one in case.changed)
    assert case.differences(load()["replay"]) == []


@pytest.mark.parametrize("name", [name for name in MARKETS if "suspended" in name or "banned" in name])
def test_both_replayers_agree_on_who_is_suspended_and_banned(run: Run, name: str) -> None:
    for case in examples(run, load, name):
        assert case.changed
        assert case.differences(load()["replay"]) == []


@pytest.mark.slow
def test_both_replayers_agree_on_examples_at_the_edges_of_rules(tmp_path: Path) -> None:
    cases = examples(fixed_run(tmp_path), load)
    assert {one.state is None for case in cases for one in case.changed} == {True, False}
    assert {case.name: found for case in cases if (found := case.differences(load()["replay"]))} == {}


@pytest.mark.slow
def test_both_replayers_agree_on_every_document_that_was_changed(run: Run, tmp_path: Path) -> None:
    cases = exports(run, tmp_path)
    assert {case.state is None for case in cases} == {True, False}
    assert [case.name for case in cases if not case.same(load()["replay"])] == []


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with a market, whose ledger has a generated history."""
    run = market_run(tmp_path_factory.mktemp("market"))
    write_history(run, 7, 70, market=True)
    return run


@pytest.fixture
def exported(market: Run, tmp_path: Path) -> Path:
    export(market.folder, tmp_path / "export", market_of=market_of)
    return tmp_path / "export"


def second(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPLAYER / "replay.py"), str(folder)], capture_output=True, text=True, check=False, cwd="/"
    )


def test_the_program_prints_the_state_that_the_command_prints(exported: Path) -> None:
    done = second(exported)
    assert done.returncode == 0, done.stderr
    assert '"market"' in done.stdout
    ours = CliRunner().invoke(ledger_app, ["replay", str(exported), "--state"])
    assert ours.exit_code == 0, ours.output
    assert done.stdout == ours.output


@pytest.mark.slow
def test_both_print_the_same_state_of_an_export_with_payments_that_were_put_back(tmp_path: Path) -> None:
    run = market_run(tmp_path)
    seed = next(paying_seeds(run, 600))
    with Database.open(run.folder.database) as database, database.transaction():
        history = GeneratedLedger(seed, database, run.id, run.keys.ledger, market=True).write(600)
        assert heads_over(run, database).sign(START)
        history.refusal()
    export(run.folder, tmp_path / "export", market_of=market_of)
    done = second(tmp_path / "export")
    assert done.returncode == 0, done.stderr
    assert "paid:csv" in done.stdout
    ours = CliRunner().invoke(ledger_app, ["replay", str(tmp_path / "export"), "--state"])
    assert done.stdout == ours.output


def test_the_program_says_its_usage_where_there_is_no_export(tmp_path: Path) -> None:
    done = second(tmp_path / "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: replay.py EXPORT")


def test_the_coordinators_own_state_has_the_market(market: Run, exported: Path) -> None:
    replay = LedgerReplay(market.chain, ReplayedMarket(market.id))
    with Database.read(market.folder.database) as database:
        own = of_tables(database, ReplayedMarket(market.id))
        replay_of = LedgerWalk([], replay.take)
        for written, named in rows_of(exported):
            replay_of.take(written, named)
        replay.take(list(database_entries(database))[-1])
    assert own.market == replay.state().market
    assert own.balances == replay.state().balances


def database_entries(database: Database) -> Iterable[Entry]:
    from echo2.coordinator.accounts.ledger import Ledger

    return Ledger(database).entries()


def test_a_run_with_a_market_is_not_exported_without_its_rules(market: Run, tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match="price mode 'market'"):
        export(market.folder, tmp_path / "export")


def rows_of(folder: Path) -> list[Row]:
    (path,) = (folder / "entries").iterdir()
    return msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=list[Row])


def write_rows(folder: Path, rows: list[Row]) -> None:
    (path,) = (folder / "entries").iterdir()
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(rows)))
    (folder / SUMS).write_text(sums(folder))


def faults(market: Run, rows: list[Row]) -> tuple[int, int]:
    """Return the numbers of the entries at which each of both replayers ends."""
    ours = LedgerReplay(market.chain, ReplayedMarket(market.id))
    theirs = Replay(roots_of(list(market.roots)), Market(market.id))
    walk = LedgerWalk([], ours.take)
    with pytest.raises(Tampered) as fault:
        take_all(walk.take, rows)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever bytes of another form lead to
        take_all(theirs.take, rows)
    return fault.value.seq, theirs.seq + 1


def take_all(take: Callable[[bytes, bytes], None], rows: list[Row]) -> None:
    for row in rows:
        take(*row)


@pytest.mark.slow
def test_a_flipped_byte_at_every_position_of_a_market_is_named_by_both(market: Run, exported: Path) -> None:
    rows = rows_of(exported)
    for number, row in enumerate(rows, start=1):
        for part in (0, 1):
            for place in range(len(row[part])):
                flip(market, rows, number, part, place)


def flip(market: Run, rows: list[Row], number: int, part: int, place: int) -> None:
    flipped = bytearray(rows[number - 1][part])
    flipped[place] ^= 1
    one = (bytes(flipped), rows[number - 1][1]) if part == 0 else (rows[number - 1][0], bytes(flipped))
    assert faults(market, [*rows[: number - 1], one]) == (number, number), (part, place)


@pytest.mark.parametrize("change", ["dropped", "added", "swapped"])
def test_an_entry_dropped_added_or_swapped_ends_verify_and_replay_with_81(exported: Path, change: str) -> None:
    rows, number = rows_of(exported), 21
    changed = {
        "dropped": [*rows[:20], *rows[21:]],
        "added": [*rows[:20], rows[3], *rows[20:]],
        "swapped": [*rows[:20], rows[21], rows[20], *rows[22:]],
    }[change]
    write_rows(exported, changed)
    for command in ("verify", "replay"):
        done = CliRunner().invoke(ledger_app, [command, str(exported)])
        assert done.exit_code == Exit.TRUST
        assert f"entry {number}" in done.output
    theirs = second(exported)
    assert theirs.returncode == Exit.TRUST
    assert f"entry {number}:" in theirs.stderr


def taken_more(fact: dict[str, Any]) -> dict[str, Any]:
    return fact | {"amount": fact["amount"] + 1}


FORGED: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "a forfeit of more than the group earned": ("forfeited", taken_more),
    "a forfeit of less": ("forfeited", lambda fact: fact | {"amount": 1}),
    "a forfeit of no group": ("forfeited", lambda fact: fact | {"lease": b""}),
    "a forfeit of a group that stands": ("forfeited", lambda fact: fact | {"lease": (1).to_bytes(16, "big")}),
    "a plan of more than is payable": ("payout.planned", lambda fact: fact | {"total": 10**18}),
    "a payment put back of more": ("payout.restored", lambda fact: fact | {"amount": fact["amount"] + 10**7}),
    "a payment put back of no plan": ("payout.restored", lambda fact: fact | {"plan": 0}),
    "a payment of more": ("payout.sent", lambda fact: fact | {"amount": fact["amount"] + 10**7}),
    "a release of more": ("released", lambda fact: fact | {"amounts": [[n, a + 1] for n, a in fact["amounts"]]}),
    "more that vests": ("vested", lambda fact: fact | {"amounts": [[n, a + 1] for n, a in fact["amounts"]]}),
    "a group taken back that weighed more": ("lease.reversed", lambda fact: fact | {"weight": fact["weight"] + 1}),
    "a group paid twice": ("lease.reversed", lambda fact: fact | {"paid": not fact["paid"]}),
    "a weight without lengths": (
        "lease.accepted", lambda fact: {k: v for k, v in fact.items() if k != "turns" or not fact["weight"]}
    ),
    "a close that pays more": (
        "epoch.closed", lambda fact: fact | {"nodes": [[*row[:4], row[4] + 1, *row[5:]] for row in fact["nodes"]]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def long_history(run: Run) -> Iterator[GeneratedLedger]:
    """Return the first history that has entries of all kinds that are forged."""
    with ExitStack() as stack:
        for seed in paying_seeds(run, 600):
            database = stack.enter_context(memory())
            history = GeneratedLedger(seed, database, run.id, run.keys.ledger, market=True).write(600)
            if {kind for kind, _ in FORGED.values()} <= {entry.kind for entry in history.ledger.entries()}:
                break
        yield history


@pytest.mark.parametrize("case", FORGED)
@pytest.mark.slow_for(
    "a forfeit of more than the group earned",
    "a forfeit of less",
    "a forfeit of no group",
    "a forfeit of a group that stands",
    "a weight without lengths",
    "a close that pays more",
)
def test_an_amount_that_does_not_follow_is_named_by_both(run: Run, long_history: GeneratedLedger, case: str) -> None:
    kind, change = FORGED[case]
    entries = list(long_history.ledger.entries())
    numbers = [one.seq for one in entries if one.kind == kind and (one.postings or kind != "vested")]
    assert numbers, f"the history has no {kind}"
    forged = {n: msgspec.msgpack.encode(change(msgspec.msgpack.decode(entries[n - 1].facts))) for n in numbers}
    changed = [number for number in numbers if forged[number] != entries[number - 1].facts]
    assert changed, f"no {kind} of the history can be changed so"
    for number in changed[-2:]:
        rows = rechained(entries[:number], entries[number - 1]._replace(facts=forged[number]))
        assert faults(run, rows) == (number, number)


def rechained(entries: list[Entry], last: Entry) -> list[Row]:
    """Return rows of entries, the last one replaced, with the hash that follows."""
    rows = [(canonical(*one[:6]), one.hash) for one in entries[:-1]]
    written = canonical(*last[:6])
    return [*rows, (written, chain_hash(rows[-1][1], written))]


def test_a_head_or_a_document_that_was_changed_ends_the_second_one_as_well(exported: Path) -> None:
    for name in ("roots", "runspec", "heads", "SHA256SUMS"):
        path = exported / name
        good = path.read_bytes()
        for place in range(0, len(good), 17):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(Exception):  # noqa: B017, PT011
                replayed(exported)
        path.write_bytes(good)
    replayed(exported)


def test_the_replayer_is_short_and_imports_nothing_of_the_product() -> None:
    modules = [REPLAYER / "replay.py", REPLAYER / "market_rules.py"]
    imported = set[str]()
    for path in modules:
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in one.names}
            elif isinstance(one, ast.ImportFrom):
                imported.add(str(one.module).partition(".")[0])
    others = imported - sys.stdlib_module_names - {path.stem for path in modules}
    assert others == {"msgpack", "nacl"}
    assert sum(len(path.read_text().splitlines()) for path in modules) <= 1_030, "of both"
