"""A replay from an export alone has the coordinator's own state, every byte, and names the first entry that differs."""

import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger_search import find, format_entry, proof
from echo2.coordinator.command_line.exit_table import own_code
from echo2.coordinator.command_line.ledger_app import ledger_app
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.ledger_files.stored_state import of_tables
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.run.setup import Run
from echo2.coordinator.verification.open_classes import ledger_keys
from echo2.coordinator.web import node_rows
from echo2.engines.engine import SampleScore
from echo2.ledger.costs_in_force import CostsSet, seal_costs
from echo2.ledger.export_files import STATE, SUMS, sums
from echo2.ledger.export_replay import lines, replay
from echo2.ledger.ledger_audit import LedgerWalk
from echo2.ledger.ledger_entries import ORIGIN, Entry, Tampered, canonical, chain_hash, sha256
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.p2p.identity import generate_key, peer_id
from echo2.p2p.swarm import merkle
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support.costs import COSTS
from tests.support.group_world import ALICE, BOB, HELLO, World, group, honest_scores
from tests.support.run_folders import make_run, write_model

PERSONAL = msgspec.structs.replace(
    HELLO, name="alice at pc7.example.org", device="203.0.113.7 in the attic", software="build of carol@example.com"
)
PERSONALLY = re.compile(
    rb"alice|attic|carol|[0-9]{1,3}(\.[0-9]{1,3}){3}|/(ip4|ip6|dns|dns4|dns6|tcp|udp|p2p)/|localhost"
    rb"|[a-z0-9]+@[a-z0-9]+\.[a-z]|[a-z0-9-]+\.(org|com|net|local|lan|example)\b"
)
"""Names and devices of the nodes, and whatever looks like an address, a host or an e-mail."""
Row = tuple[bytes, bytes]
"""Canonical bytes and hash of an entry."""


class History(World):
    """A coordinator over a run folder, with a history of all that needs no engine."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.folder.path, batch_groups=50)
        self.run = run
        self.service, self.accounts = self.group_service, self.group_service.accounts
        for node in (ALICE, BOB):
            self.service.registry.register(node, PERSONAL, None, self.now)
        self.before_costs()
        costs = msgspec.structs.replace(COSTS, run=run.id)
        assert self.service.costs.take(seal_costs(costs, run.keys.ledger), run.id, ledger_keys(run.chain), self.now)
        self.after_costs()
        sealer = Sealer(run)
        LedgerHeads(self.service.database, self.service.ledger, run.id, sealer, sealer.note, every=1).sign(self.now)

    def before_costs(self) -> None:
        for node in (ALICE, ALICE, BOB, ALICE):
            self.accepted(node)
        self.refused_by_the_pass(ALICE)
        self.accounts.remark(BOB, "node.vouched", "known to us", self.now)

    def after_costs(self) -> None:
        self.accepted(BOB)
        refused = self.refused_by_the_pass(BOB)
        self.service.verdicts.second.reverse(refused, "operator", "our fault", self.now)
        taken = self.accepted(ALICE).id
        self.service.verdicts.second.reverse(taken, "operator", "our fault too", self.now)
        self.accounts.suspend(ALICE, "drift", bytes(32), self.now, self.now + 5_000)
        self.accounts.remark(BOB, "node.noted", "a note", self.now)
        self.lease(bytes([9]) * 32)
        self.now += 10_000_000
        while self.service.verdicts.expiries.expire(self.now):
            pass
        self.now += 70_000
        assert self.service.lease_ends.write_entry(self.now)

    def refused_by_the_pass(self, node: bytes) -> bytes:
        lease = self.lease(node)
        self.submit(group(lease), node)
        (waiting,) = self.service.list_undecided(10)
        scores = honest_scores(waiting.submission)
        wrong = [SampleScore(logprobs=one.logprobs, margins=[9.0] * len(one.margins)) for one in scores]
        assert self.decide(waiting, wrong).verdict == "refused"
        return lease.id


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    folder = tmp_path_factory.mktemp("run")
    made = History(make_run(folder / "run", write_model(folder / "model")))
    yield made
    made.close()


@pytest.fixture
def exported(history: History, tmp_path: Path) -> Path:
    export(history.run.folder, tmp_path / "export")
    return tmp_path / "export"


def rows_of(folder: Path) -> list[Row]:
    (path,) = (folder / "entries").iterdir()
    return msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=list[Row])


def write_rows(folder: Path, rows: list[Row]) -> None:
    """Put other entries in the place of an export's, with the hashes of files that go with them."""
    (path,) = (folder / "entries").iterdir()
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(rows)))
    (folder / SUMS).write_text(sums(folder))


def entries_of(rows: list[Row]) -> list[Entry]:
    kind = tuple[int, int, str, str, tuple[tuple[str, int], ...], bytes]
    return [Entry(*msgspec.msgpack.decode(written, type=kind), named) for written, named in rows]  # type: ignore[arg-type]


def rechained(entries: list[Entry]) -> list[Row]:
    """Return rows with hashes that follow from their content: those of an operator who rewrites his ledger."""
    rows, previous = list[Row](), ORIGIN
    for number, entry in enumerate(entries, start=1):
        written = canonical(number, *entry[1:6])
        previous = chain_hash(previous, written)
        rows.append((written, previous))
    return rows


def test_the_replay_has_the_coordinators_own_state_every_byte(history: History, exported: Path) -> None:
    replayed = replay(exported)
    own = of_tables(history.service.database)
    assert replayed.state.as_bytes() == own.as_bytes() == (exported / STATE).read_bytes()
    assert replayed.compared
    assert {one.rank for one in replayed.state.keys.values()} == {"known"}
    assert [one.node for one in replayed.state.ranking] == [row.id for row in history.rows() if row.weight]
    assert [one.weight for one in replayed.state.ranking] == [row.weight for row in history.rows() if row.weight]
    assert "every byte as the coordinator has it" in lines(replayed)[1]


def test_no_file_of_an_export_has_a_name_an_address_or_a_host(history: History, exported: Path) -> None:
    stored = history.service.database.all("SELECT name, device, software FROM nodes")
    assert all(PERSONALLY.search(text.encode()) for row in stored for text in row)
    for path in exported.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            plain = gzip.decompress(data) if path.parent.name == "entries" else data
            assert PERSONALLY.search(plain.lower()) is None, path


def test_the_history_has_entries_of_many_kinds(exported: Path) -> None:
    kinds = {entry.kind for entry in entries_of(rows_of(exported))}
    assert kinds >= {"points.issued", "lease.accepted", "lease.reversed", "leases.ended", "costs.set", "node.vouched"}
    assert kinds >= {"node.noted", "node.suspended"}


def first_fault(history: History, rows: list[Row]) -> int:
    """Walk and replay entries without files; return the number of the first one that differs."""
    replayed = LedgerReplay(history.run.chain)
    walk = LedgerWalk([], replayed.take)
    try:
        for row in rows:
            walk.take(*row)
    except Tampered as fault:
        return fault.seq
    raise AssertionError("nothing was found")


@pytest.mark.parametrize("each", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_byte_at_every_position_is_named(history: History, exported: Path, each: int) -> None:
    rows = rows_of(exported)
    for number, (written, named) in enumerate(rows, start=1):
        for place, part in itertools.chain(
            ((at, 0) for at in range(0, len(written), each)), ((at, 1) for at in range(0, len(named), each))
        ):
            flipped = bytearray(rows[number - 1][part])
            flipped[place] ^= 1
            one = (bytes(flipped), named) if part == 0 else (written, bytes(flipped))
            assert first_fault(history, [*rows[: number - 1], one]) == number, (number, place, part)


def dropped(rows: list[Row], number: int) -> list[Row]:
    return [*rows[: number - 1], *rows[number:]]


def doubled(rows: list[Row], number: int) -> list[Row]:
    return [*rows[: number - 1], rows[number - 2] if number > 1 else rows[-1], *rows[number - 1 :]]


def swapped(rows: list[Row], number: int) -> list[Row]:
    other = number % len(rows)
    changed = list(rows)
    changed[number - 1], changed[other] = changed[other], changed[number - 1]
    return changed


@pytest.mark.parametrize("change", [dropped, doubled, swapped])
def test_an_entry_dropped_added_or_swapped_at_every_position_is_named(
    change: Callable[[list[Row], int], list[Row]], exported: Path
) -> None:
    rows = rows_of(exported)
    for number in range(1, len(rows) + 1):
        write_rows(exported, change(rows, number))
        with pytest.raises(Tampered) as fault:
            replay(exported)
        first = 1 if change is swapped and number == len(rows) else number
        assert fault.value.seq == first, (change.__name__, number)
        assert own_code(fault.value) == Exit.TRUST


def test_an_operator_who_rewrites_a_payment_with_all_hashes_is_found_at_that_entry(
    history: History, exported: Path
) -> None:
    entries, found = entries_of(rows_of(exported)), 0
    for number, entry in enumerate(entries, start=1):
        if not entry.postings:
            continue
        more = tuple((account, amount + (1 if amount > 0 else -1)) for account, amount in entry.postings)
        rewritten = [*entries[: number - 1], entry._replace(postings=more), *entries[number:]]  # type: ignore[arg-type]
        assert first_fault(history, rechained(rewritten)) == number
        found += 1
    assert found > 8


def weighing(entry: Entry, by: int) -> Entry:
    """Return an accepted group's entry with another weight, and postings that go with it."""
    facts = msgspec.msgpack.decode(entry.facts)
    facts["weight"] += by
    more = tuple((account, amount + (by if amount > 0 else -by)) for account, amount in entry.postings)
    return entry._replace(facts=msgspec.msgpack.encode(facts), postings=more)  # type: ignore[arg-type]


def changed(entry: Entry, **facts: Any) -> Entry:
    return entry._replace(facts=msgspec.msgpack.encode(msgspec.msgpack.decode(entry.facts) | facts))


def test_a_weight_that_does_not_follow_from_the_lengths_is_found_even_where_all_else_goes_with_it(
    history: History, exported: Path
) -> None:
    entries = entries_of(rows_of(exported))
    for number, entry in enumerate(entries, start=1):
        if entry.kind == "lease.accepted":
            lies = [weighing(entry, 1), changed(entry, costs=1), changed(entry, turns=[[3], [900]])]
            for lie in [*lies, changed(entry, rollouts=9), changed(entry, prompt=400), changed(entry, weight="x")]:
                rewritten = [*entries[: number - 1], lie, *entries[number:]]
                assert first_fault(history, rechained(rewritten)) == number


def forged_costs(history: History, entry: Entry) -> Iterator[Entry]:
    """Yield `costs.set` entries that are not the ledger key's."""
    fact = msgspec.msgpack.decode(entry.facts, type=CostsSet)
    costs = msgspec.structs.replace(COSTS, run=history.run.id)
    yield changed(entry, costs=bytes(32))
    yield changed(entry, sealed=b"")
    yield changed(entry, sealed=seal_costs(costs, generate_key()))
    yield changed(entry, sealed=seal_costs(msgspec.structs.replace(costs, run=b"o" * 32), history.run.keys.ledger))
    yield entry._replace(key=f"costs:{fact.costs.hex()[1:]}")


def test_costs_that_the_ledgers_key_did_not_sign_are_found(history: History, exported: Path) -> None:
    entries = entries_of(rows_of(exported))
    (at,) = [place for place, entry in enumerate(entries) if entry.kind == "costs.set"]
    for lie in forged_costs(history, entries[at]):
        assert first_fault(history, rechained([*entries[:at], lie, *entries[at + 1 :]])) == at + 1


def test_an_entry_about_a_key_whose_facts_lack_a_field_is_named(history: History, exported: Path) -> None:
    entries = entries_of(rows_of(exported))
    (at,) = [place for place, entry in enumerate(entries) if entry.kind == "node.vouched"]
    facts = {name: value for name, value in msgspec.msgpack.decode(entries[at].facts).items() if name != "why"}
    lie = entries[at]._replace(facts=msgspec.msgpack.encode(facts))
    assert first_fault(history, rechained([*entries[:at], lie])) == at + 1


def test_a_kind_that_this_build_does_not_know_may_state_facts_and_moves_nothing(
    history: History, exported: Path
) -> None:
    entries = entries_of(rows_of(exported))
    fact = entries[0]._replace(kind="weather.noted", key="weather:1", postings=())
    replayed = LedgerReplay(history.run.chain)
    walk = LedgerWalk([], replayed.take)
    for row in rechained([*entries, fact]):
        walk.take(*row)
    moving = fact._replace(postings=entries[0].postings)
    assert first_fault(history, rechained([*entries, moving])) == len(entries) + 1


def test_a_state_of_the_coordinator_that_does_not_follow_is_shown_by_its_line(exported: Path) -> None:
    state = (exported / STATE).read_bytes()
    (exported / STATE).write_bytes(state.replace(b'"known"', b'"proven"', 1))
    (exported / SUMS).write_text(sums(exported))
    with pytest.raises(Untrusted, match=r'line \d+ is "rank": "proven"'):
        replay(exported)


def test_an_export_without_the_coordinators_state_is_replayed_all_the_same(
    history: History, exported: Path, tmp_path: Path
) -> None:
    (exported / STATE).unlink()
    (exported / SUMS).write_text(sums(exported))
    replayed = replay(exported)
    assert not replayed.compared
    assert "not in the export" in lines(replayed)[1]


def test_a_folder_that_is_no_export_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match="is it an export of a ledger"):
        replay(tmp_path)


def test_the_command_prints_the_state_and_ends_with_81(exported: Path) -> None:
    run = CliRunner()
    done = run.invoke(ledger_app, ["replay", str(exported)])
    assert done.exit_code == 0, done.output
    assert "each with the key, weight and postings" in done.output
    shown_state = run.invoke(ledger_app, ["replay", str(exported), "--state"]).output
    assert shown_state.encode() == (exported / STATE).read_bytes()
    rows = rows_of(exported)
    write_rows(exported, dropped(rows, 3))
    assert run.invoke(ledger_app, ["replay", str(exported)]).exit_code == Exit.TRUST


def test_entries_are_found_by_number_lease_key_and_node(history: History) -> None:
    ledger = history.service.ledger
    accepted = next(entry for entry in ledger.entries() if entry.kind == "lease.accepted")
    lease = msgspec.msgpack.decode(accepted.facts)["lease"].hex()
    assert list(find(ledger, str(accepted.seq))) == [accepted]
    assert list(find(ledger, lease)) == [accepted]
    assert list(find(ledger, accepted.key)) == [accepted]
    assert accepted in list(find(ledger, peer_id(ALICE)))
    assert {json.loads(format_entry(one))["facts"]["node"] for one in find(ledger, peer_id(BOB))} >= {peer_id(BOB)}
    assert json.loads(format_entry(accepted))["facts"]["lease"] == lease
    for nothing in ("99999", "ab" * 16, "lease:", "1" * 40, "", "9" * 5000):
        assert list(find(ledger, nothing)) == []


def test_a_proof_leads_to_the_root_of_the_newest_head(history: History) -> None:
    told = json.loads(proof(history.service.database, 4))
    path = [bytes.fromhex(one) for one in told["path"]]
    written, root = bytes.fromhex(told["canonical"]), bytes.fromhex(told["root"])
    assert merkle.verify(root, written, 3, told["size"], path, sha256)
    with pytest.raises(LocalFault, match="has no entry 999"):
        proof(history.service.database, 999)


def test_the_commands_find_and_prove(history: History) -> None:
    run, home = CliRunner(), str(history.run.folder.path)
    done = run.invoke(ledger_app, ["find", "1", "--home", home])
    assert json.loads(done.output)["kind"] == "points.issued"
    assert run.invoke(ledger_app, ["find", "nobody", "--home", home]).exit_code != 0
    assert json.loads(run.invoke(ledger_app, ["proof", "2", "--home", home]).output)["entry"] == 2


def test_the_ranking_of_a_replay_has_the_numbers_of_the_page(history: History, exported: Path) -> None:
    printed = CliRunner().invoke(ledger_app, ["replay", str(exported), "--page"]).stdout.splitlines()
    entries = history.service.ledger.tip().entries
    assert printed[0] == f"# as of entry {entries}, head 1 over {entries} of them"
    assert printed[1].split(",")[1:] == ["id", "weight", "accepted", "rollouts", "tokens", "points", "rank", "score"]
    *_, last = history.service.ledger.entries()
    rows = node_rows.page(history.service.database, None, 1_000, [], {}, last.at).rows
    page = [row for row in rows if row.weight]
    assert len(page) == 2
    columns = ("id", "weight", "accepted", "rollouts", "tokens", "points", "rank", "score")
    shown = [
        ",".join([str(place), *(str(getattr(row, column)) for column in columns)])
        for place, row in enumerate(page, start=1)
    ]
    assert printed[2:] == shown
