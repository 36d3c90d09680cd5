"""Cases for programs that replay a ledger: generated histories, each of their entries changed in turn, and examples at
the edges of rules. The product says what is right of each."""

import contextlib
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from echo2.coordinator.market.market_replay import ReplayedMarket
from echo2.coordinator.run.setup import Run
from echo2.ledger.drawn_beacons import DrawnBeacons
from echo2.ledger.ledger_audit import LedgerWalk
from echo2.ledger.ledger_entries import Entry, Tampered, canonical, chain_hash
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.p2p.envelope import seal
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import Root
from echo2.runtime.units import DAY
from tests.support.example_ledger import ExampleLedger
from tests.support.export_cases import KEYS, OLD, OTHER, exports, role
from tests.support.generated_ledger import GeneratedLedger, memory
from tests.support.market_examples import MARKETS
from tests.support.payment_examples import PAYMENTS
from tests.support.points_examples import POINTS
from tests.support.run_folders import make_run, write_model

Row = tuple[bytes, bytes]
OPTIONAL = ("rules", "audited", "prompt", "turns", "costs", "lacking", "calibration", "decided")
"""Fields that an entry may lack."""
BOUNDS = {
    "rate": (1, 10**12), "need": (0, 10**15), "reserve": (1, 10**15), "budget": (0, 10**18), "cap": (1, 1000),
    "milliseconds": (1000, 7 * DAY), "newcomers": (0, 1000), "run_off": (0, DAY),
}  # fmt: skip
"""Fields with limits; of each these, and one beyond, are tried."""
Load = Callable[[], dict[str, ModuleType]]
"""Return the modules of the second replayer, anew."""


class Oracle:
    """The product's verification and replay of entries, one by one."""

    def __init__(self, run: Run, market: bool) -> None:
        self.replay = LedgerReplay(run.chain, ReplayedMarket(run.id) if market else None)
        self.beacons = DrawnBeacons(run.id, [])
        self.walk, self.packed = LedgerWalk([], self._take), b""

    def _take(self, entry: Entry) -> None:
        self.beacons.take(entry)
        self.replay.take(entry)

    def take(self, row: Row) -> None:
        """Take the next entry."""
        self.packed = b""
        self.walk.take(*row)

    def outcome(self, row: Row) -> str | None:
        """Return the state after one more entry; None: it is refused. The oracle itself stays as it is."""
        self.packed = self.packed or pickle.dumps(self)
        later = pickle.loads(self.packed)
        try:
            later.walk.take(*row)
        except Tampered:
            return None
        return later.replay.state().as_bytes().decode()


class Changed(NamedTuple):
    """An entry that stands in the place of entry `number`. `state`: after it; None: it is refused."""

    number: int
    row: Row
    state: str | None
    name: str


class History(NamedTuple):
    """A ledger in memory. `changed`: entries to be tried instead, in order; the history goes on without them.
    `state`: at its end."""

    name: str
    roots: list[bytes]
    run: bytes
    market: bool
    rows: list[Row]
    changed: list[Changed]
    state: str

    def same(self, module: ModuleType) -> bool:
        """Tell whether a replayer says of this history what the product does."""
        return next(self._differences(module), None) is None

    def differences(self, module: ModuleType) -> list[str]:
        """Return the names of what a replayer judges differently than the product."""
        return list(self._differences(module))

    def _differences(self, module: ModuleType) -> Iterator[str]:
        replay = module.Replay(module.roots_of(self.roots), module.Market(self.run) if self.market else None)
        waiting = self.changed[::-1]
        for number, row in enumerate([*self.rows, None], start=1):
            while waiting and waiting[-1].number == number:
                one = waiting.pop()
                if outcome(replay, one.row) != one.state:
                    yield one.name
            if row is not None:
                replay.take(*row)
        if replay.state() != self.state:
            yield "its end"


def cloned(replay: Any) -> Any:
    """Return a copy of a second replayer."""
    later = _clone(replay)
    if later.market:
        later.market.balances = later.balances
    return later


def _clone(value: Any) -> Any:
    if isinstance(value, dict):
        copied = type(value)()
        dict.update(copied, {key: _clone(one) for key, one in value.items()})
        return copied
    if isinstance(value, list):
        return [_clone(one) for one in value]
    if isinstance(value, set):
        return set(value)
    if hasattr(value, "take"):
        copied = object.__new__(type(value))
        copied.__dict__.update(_clone(value.__dict__))
        return copied
    return value


def outcome(replay: Any, row: Row) -> str | None:
    """Return the state of the second replayer after one more entry; None: it is refused."""
    later = cloned(replay)
    try:
        later.take(*row)
        return str(later.state())
    except Exception:
        return None


def edits(value: Any, other: str, whole: bool = True) -> Iterator[Any]:
    """Yield values of the same type beside a value. `other`: a peer id. `whole`: lists change in length, too."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value - 1, value + 1, value + 10**7)
    elif isinstance(value, str):
        yield from (other, "ok", "evidence", "") if value != other else ("ok",)
    elif isinstance(value, bytes):
        yield from (bytes([value[0] ^ 1]) + value[1:], value[:-1]) if value else (b"x",)
    elif isinstance(value, list):
        yield from (value[1:], value[::-1], [*value, *value[-1:]]) if whole else ()
        for place in range(min(len(value), 2)):
            for one in edits(value[place], other, False):
                yield [*value[:place], one, *value[place + 1 :]]


def changed_facts(facts: dict[str, Any], other: str, at: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in facts.items():
        if name in OPTIONAL:
            yield f"without {name}", {one: n for one, n in facts.items() if one != name}
        least, most = BOUNDS.get(name, (0, 0))
        bounds = [least - 1, least, most, most + 1] if name in BOUNDS else [at, at + 1] if name == "closes" else []
        for one in [*edits(value, other), *bounds]:
            yield f"{name} {one!r:.30}", {**facts, name: one}


class Forger:
    """Changed entries of a history, some of which follow from their facts as far as key and postings go.
    `replay`: the second replayer without its checks, after the same entries."""

    def __init__(self, modules: dict[str, ModuleType], history: GeneratedLedger, run: Run, market: bool) -> None:
        self.modules, self.other = modules, history.nodes[0]
        for module in modules.values():
            module.__dict__["check"] = lambda good, why: None
        program = modules["replay"]
        self.replay = program.Replay(program.roots_of(list(run.roots)), program.Market(run.id) if market else None)

    def entries(self, entry: Entry) -> Iterator[tuple[str, Entry]]:
        """Yield changed forms of the next entry, each with a name."""
        yield "key", entry._replace(key=entry.key + "0")
        yield "number", entry._replace(seq=entry.seq + 1)
        yield "no postings", entry._replace(postings=())
        yield "postings turned", entry._replace(postings=entry.postings[::-1])
        for more in (-DAY, -1, 1, 10, 11, DAY):
            later = entry._replace(at=entry.at + more)
            yield f"at {more}", later
            follows = self.followed(later)
            if follows is not None and follows != later:
                yield f"at {more}, all else follows", follows
        facts = msgspec.msgpack.decode(entry.facts)
        for name, told in changed_facts(facts, self.other, entry.at):
            changed = entry._replace(facts=msgspec.msgpack.encode(told))
            yield name, changed
            follows = self.followed(changed)
            if follows is not None and follows != changed:
                yield f"{name}, all else follows", follows

    def followed(self, entry: Entry) -> Entry | None:
        """Return an entry whose key, postings and facts follow from its facts, if nothing is checked."""
        program, replay = self.modules["replay"], cloned(self.replay)
        told = program.unpack(entry.facts)
        taken = program.Map(entry._asdict(), told=told)
        with contextlib.suppress(Exception):
            form, rule = program.RULES.get(entry.kind, (None, None))
            moves = (rule(replay, taken, told) or []) if rule else []
            if replay.market and entry.kind in self.modules["market_rules"].FORMS:
                key, facts, moves = replay.market.following(taken)
                return entry._replace(key=key, facts=facts, postings=tuple(map(tuple, moves)))
            moves = [] if replay.market and not entry.kind.startswith("payout.") else [one for one in moves if one[1]]
            return entry._replace(key=program.key_from(form, taken), postings=tuple(map(tuple, moves)))
        return None


def forged(run: Run, history: GeneratedLedger, market: bool, load: Load, each: int) -> list[Changed]:
    """Return changed forms of `each` entries of every kind in a history, with what the product says of them."""
    forger, oracle, found = Forger(load(), history, run, market), Oracle(run, market), list[Changed]()
    numbers, dice = dict[str, list[int]](), random.Random(each)
    for entry in history.ledger.entries():
        numbers.setdefault(entry.kind, []).append(entry.seq)
    chosen = {one for those in numbers.values() for one in dice.sample(those, min(each, len(those)))}
    for number, entry in enumerate([*history.ledger.entries(), None], start=1):
        tries = list(forger.entries(entry)) if entry is not None and number in chosen else []
        for name, changed in [*tries, *(("aside", one) for one in history.aside if one.seq == number)]:
            written = canonical(*changed[:6])
            row = written, chain_hash(oracle.walk.tip, written)
            found.append(Changed(number, row, oracle.outcome(row), f"{changed.kind}: {name}, entry {number}"))
        if entry is not None and number in chosen:
            row = in_other_bytes(entry, oracle.walk.tip)
            found.append(Changed(number, row, oracle.outcome(row), f"{entry.kind}: in other bytes, entry {number}"))
        if entry is not None:
            row = canonical(*entry[:6]), entry.hash
            forger.replay.take(*row)
            oracle.take(row)
    return found


def in_other_bytes(entry: Entry, tip: bytes) -> Row:
    """Return the row of an entry whose number takes 9 bytes."""
    written, number = canonical(*entry[:6]), msgspec.msgpack.encode(entry.seq)
    longer = written[:1] + b"\xcf" + entry.seq.to_bytes(8, "big") + written[1 + len(number) :]
    return longer, chain_hash(tip, longer)


def history_of(run: Run, seed: int, entries: int, load: Load, each: int = 0) -> History:
    """Return a generated history. `each`: of how many entries of every kind there are changed forms."""
    market = seed % 5 != 0
    with memory() as database:
        history = GeneratedLedger(seed, database, run.id, run.keys.ledger, market=market).write(entries)
        changed = forged(run, history, market, load, each) if each else []
        return _case(f"history {seed}", run, history, market, changed)


def _case(name: str, run: Run, history: GeneratedLedger, market: bool, changed: list[Changed]) -> History:
    rows = [(canonical(*entry[:6]), entry.hash) for entry in history.ledger.entries()]
    oracle = Oracle(run, market)
    for row in rows:
        oracle.take(row)
    return History(name, list(run.roots), run.id, market, rows, changed, oracle.replay.state().as_bytes().decode())


def examples(run: Run, load: Load, begin: str = "") -> list[History]:
    """Return the examples of ledgers, each with the entries beside it. `begin`: beginning of their names."""
    cases = list[History]()
    for market, written in ((True, MARKETS | PAYMENTS), (False, POINTS)):
        for name, write in [one for one in written.items() if one[0].startswith(begin)]:
            with memory() as database:
                history = ExampleLedger(1, database, run.id, run.keys.ledger, market=market)
                write(history)
                changed = forged(run, history, market, load, 0)
                cases.append(_case(f"example: {name}", run, history, market, changed))
    return cases


def fixed_run(folder: Path) -> Run:
    """Make a run whose id and keys are always the same, as are lots and signatures then."""
    made = make_run(folder / "run", write_model(folder / "model"))
    keys = {"root": role(*KEYS[:1]), "ledger": role(OLD), "policy": role(OTHER), "channel": role(OTHER)}
    root = Root(run=bytes(range(32)), serial=1, roles=keys, expires=made.root.expires, issued=1)
    sealed = seal("root", root.run, encode(root), KEYS[0])
    return replace(made, keys=replace(made.keys, ledger=OLD), roots=(sealed,), chain=(root,))


def paying_seeds(run: Run, entries: int) -> Iterator[int]:
    """Yield seeds of histories in which payments are sent, and others put back after a restore. Lots, and with them
    pay, depend on the run's id."""
    for seed in (seed for seed in range(12, 2_000) if seed % 5):
        with memory() as database:
            history = GeneratedLedger(seed, database, run.id, run.keys.ledger, market=True).write(entries)
            if {"payout.planned", "payout.sent", "payout.restored"} <= {one.kind for one in history.ledger.entries()}:
                yield seed


@contextlib.contextmanager
def all_cases(load: Load) -> Iterator[list[Any]]:
    """Make the cases, the same each time, and keep them while the block runs."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        run = fixed_run(folder)
        cases: list[Any] = [*examples(run, load), *exports(run, folder / "exports")]
        cases += [history_of(run, seed, 260, load) for seed in range(8)]
        cases += [history_of(run, seed, 700, load) for seed in range(20, 32)]
        cases += [history_of(run, seed, 400, load, 1) for seed in range(6)]
        cases += [history_of(run, seed, 400, load, 2) for seed in itertools.islice(paying_seeds(run, 400), 4)]
        yield cases
