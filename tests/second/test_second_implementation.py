"""A volunteer and a replay of the ledger, written from docs/protocol alone, against this implementation.

Rules
1. They import only their own modules, the standard library and a few libraries. An import hook in their process refuses
   every package of this repository.
2. Together they have at most `MOST_LINES` lines.
3. Where the pages were not sufficient to write them, the pages were corrected.
"""

import ast
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.lease_ends import LeaseEnds, position_of
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.pay import pay_rule
from echo2.coordinator.accounts.reversals import reverse
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.run import setup
from echo2.coordinator.run.model_folder import TINY_MODEL
from echo2.coordinator.verdicts.lease_outcomes import EvidencedOutcome, LeaseOutcome
from echo2.ledger.ledger_entries import ESCROW, accrued_account, quarantine_account, transfer, unvested_account
from echo2.ledger.ledger_facts import VERDICT_RULES, AppealAnswered, CanaryVested, LeaseReversed, QuarantineEnded
from echo2.p2p.identity import public_key
from echo2.protocol.group_weights import whole_weight
from echo2.runtime.units import DAY
from tests.faults.processes import PATIENCE, Coordinator, until

SECOND = Path(__file__).resolve().parent
ROOT = SECOND.parents[1]
VECTORS = ROOT / "tests" / "vectors"
OURS = sorted({path.parent.name for path in ROOT.glob("*/__init__.py")} | {"benchmarks", "tests"})
MODULES = sorted(path for path in SECOND.glob("*.py") if not path.name.startswith("test_"))
LIBRARIES = {"blake3", "cryptography", "msgpack", "nacl", "numpy", "tokenizers", "zstandard"}
MOST_LINES = 1080
NODE = "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"
WALL = f"""
import runpy, sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OURS!r}:
            raise ImportError(f"{{name}} is a package of the product")
sys.meta_path.insert(0, Wall())
sys.path[:] = [{str(SECOND)!r}, *(path for path in sys.path if path != {str(ROOT)!r})]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def walled(*words: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program under the import hook of rule 1, in a folder without any file of this repository."""
    argv = [sys.executable, "-I", "-c", WALL, *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False, timeout=PATIENCE, **options)


def imported(path: Path) -> set[str]:
    """Return the names of the packages that a module imports, anywhere in it."""
    modules = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports by a relative name"
            modules.add((node.module or "").partition(".")[0])
    return modules


def test_it_imports_nothing_of_the_product() -> None:
    allowed = sys.stdlib_module_names | LIBRARIES | {path.stem for path in MODULES}
    foreign = {path.name: imported(path) - allowed for path in MODULES}
    assert foreign == {path.name: set() for path in MODULES}
    assert not {path.stem for path in MODULES} & set(OURS)
    assert not any("import_module" in path.read_text() or "__import__" in path.read_text() for path in MODULES)


@pytest.mark.parametrize("name", OURS)
def test_a_package_of_ours_cannot_be_imported_there(name: str, tmp_path: Path) -> None:
    (tmp_path / "sly.py").write_text(f"import importlib\nimportlib.import_module({name!r})\n")
    done = walled(tmp_path / "sly.py")
    assert done.returncode == 1
    assert f"ImportError: {name} is a package of the product" in done.stderr


def test_it_has_at_most_so_many_lines() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in MODULES}
    assert sum(lines.values()) <= MOST_LINES, lines


CHECKS = """
import json, sys
from pathlib import Path
import numpy as np
import documents, episodes, https_client, payload, policy
def played(episode, turns, limit):
    given, sampled = "", 0
    for number, (said, ends) in enumerate(turns):
        if number % 2:
            if said != given or ends:
                return None
            continue
        sampled += len(said) + ends
        if given is None or sampled > limit or not (ends or sampled == limit):
            return None
        given = episode.reply(said)
        given = None if sampled == limit else given
    return episode.score() if given is None else None

vectors = {path.stem: json.loads(path.read_text()) for path in Path(sys.argv[1]).glob("*.json")}
results = {"episodes": 0, "wrong": []}
for row in vectors["task_episodes"]:
    episode = episodes.Episode(row["task"], row["version"], row["split"], row["index"])
    score = played(episode, [tuple(turn) for turn in row["turns"]], row["limit"])
    wanted = None if row["reward"] is None else (row["reward"], row["success"])
    results["episodes"] += 1
    if (episode.prompt, score) != (row["prompt"], wanted):
        results["wrong"].append([row, episode.prompt, score])
for row in vectors["invite"]:
    found = documents.read_invite(row["text"])
    wanted = {key: row[key] and bytes.fromhex(row[key]) for key in ("run", "root_hash", "https_key")}
    if found != {**wanted, "addresses": row["addresses"]}:
        results["wrong"].append([row, str(found)])
for row in vectors["sampling"]:
    logits = ((np.arange(321) * 7919) % 640 - 320).astype(np.float32) / np.float32(64)
    token = int(np.argmax(logits + policy.noise(bytes.fromhex(row["seed"]), row["position"], 321)))
    if token != row["token"]:
        results["wrong"].append([row, token])
for row in vectors["sampling_at_temperature"]:
    by = policy.factor(row["temperature"])
    logits = ((np.arange(321) * 7919) % 640 - 320).astype(np.float32) / np.float32(64) * by
    told = np.array([by, *logits[:4]], ">f4").tobytes().hex()
    token = int(np.argmax(logits + policy.noise(bytes.fromhex(row["seed"]), row["position"], 321)))
    off = abs(policy.log_softmax(logits)[token] - row["logprob"])
    if (told, token, off < 2e-5) != ("".join([row["factor"], *row["tempered"]]), row["token"], True):
        results["wrong"].append([row, token])
print(json.dumps(results))
"""


def test_tasks_and_sampling_noise_are_those_of_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(CHECKS)
    done = walled(tmp_path / "checks.py", VECTORS)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["wrong"] == []
    assert results["episodes"] == len(json.loads((VECTORS / "task_episodes.json").read_text()))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a run of the tiny architecture that admits another engine, at temperature 0.8."""
    flags: dict[str, dict[str, Any]] = {
        "run": {
            "name": "second", "task": "reverse", "group_size": 4, "batch_groups": 2, "limit": 6, "heldout": 4,
            "evaluate_every": 100, "engines": ("transformers/float32", "second/float32"), "temperature": 0.8,
        },
        "network": {"listen": ("/ip4/127.0.0.1/tcp/0",), "mdns": False},
        "https": {"listen": ("/ip4/127.0.0.1/tcp/0",)},
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("second") / "run"
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    warm_up = WarmUp(folder="", task="", task_version=0, steps=20, noise=0.3, batch=32, shape=shape)
    setup.init(
        folder,
        TINY_MODEL,
        setup.settings_for(TINY_MODEL, flags, env={}),
        now=time.time_ns() // 1_000_000,
        warm_up=warm_up,
    )
    return folder


@pytest.fixture
def coordinator(template: Path, tmp_path: Path) -> Iterator[Coordinator]:
    program = Coordinator(template, tmp_path)
    try:
        program.start()
        yield program
    finally:
        program.end()


def backed_up(live: Path, copy: Path) -> None:
    """Copy run.sqlite beside the process that writes it, as docs/protocol/disk.md describes."""
    with closing(sqlite3.connect(f"file:{live}?mode=ro", uri=True)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


@pytest.mark.slow
def test_it_follows_versions_over_https_is_paid_and_replays_the_ledger(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """A real coordinator process, with its learner and scorer; documents of at most 60,000 bytes per version."""
    invite = coordinator.invite()
    until("a version is out", lambda: coordinator.state().version is not None)
    done = walled(SECOND / "volunteer.py", tmp_path, invite, "24")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "told.json").read_text())
    assert results["refused"] == []
    assert len(results["receipts"]) == 24
    assert len(results["versions"]) >= 6
    assert results["versions"] == sorted(set(results["versions"]))
    per_version = results["received"]["documents"] / len(results["versions"])
    assert per_version <= 60_000, f"{per_version:.0f} bytes of documents a version"

    backed_up(coordinator.folder.database, tmp_path / "copy.sqlite")
    done = walled(SECOND / "accounts.py", tmp_path / "copy.sqlite", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    replayed = json.loads(done.stdout)
    assert replayed["earned"] > 0
    assert replayed["rank"] == "known"
    print(f"{per_version:.0f} bytes of documents a version, {len(results['versions'])} versions; {results['received']}")


def ledger_of(path: Path) -> None:
    """Write a run.sqlite with a ledger of four entries: 500 issued, 109 paid to a node, one lease expired, and a minute
    of refused leases."""
    with closing(Database.open(path)) as database:
        ledger = Ledger(database)
        accounts = Accounts(database, ledger)
        ends = LeaseEnds(database, ledger, accounts)
        with database.transaction():
            ledger.issue_points(1_000, 109)
            for lease, weight in ((b"a" * 16, 109), (b"b" * 16, 0)):
                kind, code = ("lease.accepted", "ok") if weight else ("lease.expired", "expired")
                end = end_of(lease, code, weight)
                ledger.append(2_000, kind, f"lease:{lease.hex()}", end, transfer(ESCROW, accrued_account(NODE), weight))
            for lease, code in ((b"c" * 16, "drift"), (b"d" * 16, "expired"), (b"e" * 16, "tokens")):
                ends.put(lease, msgspec.msgpack.encode(end_of(lease, code, 0)), 3_000)
            assert ends.write_entry(100_000) == 3


def end_of(lease: bytes, code: str, weight: int) -> LeaseOutcome:
    """Return the end of a lease, of a group of one rollout with as many tokens as weigh so much, if any do."""
    tokens = next((number for number in range(1_000) if whole_weight(None, number, [()]) == weight), 0)
    return LeaseOutcome(
        node=NODE, lease=lease, era=1, version=2, sent=3, expires=4, received=None, code=code, rollouts=bool(weight),
        tokens_in=1, tokens_out=tokens, weight=weight, trainable=True, submission_hash=None,
        prompt=0, turns=[[tokens]] if tokens else [],
    )  # fmt: skip


FORGERIES = {
    "an amount": (
        "UPDATE entries SET postings = (SELECT postings FROM entries WHERE seq = 1) WHERE seq = 2",
        "does not hash",
    ),
    "a fact": ("UPDATE entries SET facts = (SELECT facts FROM entries WHERE seq = 3) WHERE seq = 2", "does not hash"),
    "an entry that is gone": ("DELETE FROM entries WHERE seq = 2", "entry 3 stands where 2 belongs"),
    "a balance": ("UPDATE balances SET amount = amount + 1 WHERE account LIKE 'node:%'", "the balances are others"),
    "an end": (
        "UPDATE ends SET document = (SELECT document FROM ends WHERE lease = x'64646464646464646464646464646464')",
        "entry 4: other ends",
    ),
    "an end that is gone": (
        "DELETE FROM ends WHERE lease = x'64646464646464646464646464646464'",
        "entry 4: other ends",
    ),
    "the last entry that is gone": (
        "DELETE FROM entries WHERE seq = 4",
        "an end is of an entry that tells of no ends",
    ),
    "the last entries that are gone": (
        "UPDATE ends SET entry = NULL; DELETE FROM entries WHERE seq > 2",
        "the ledger was rewritten under a receipt",
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_the_ledger_replay_detects(what: str, tmp_path: Path) -> None:
    """Each forgery of a ledger is detected and named."""
    ledger_of(tmp_path / "run.sqlite")
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as database:
        hashes = dict(database.execute("SELECT seq, hash FROM entries"))
        for trigger in ("changed", "removed"):
            database.execute(f"DROP TRIGGER entries_are_never_{trigger}")
        backed_up(tmp_path / "run.sqlite", tmp_path / "true.sqlite")
        leaves = dict(database.execute("SELECT lease, document FROM ends"))
        database.executescript(FORGERIES[what][0])
    receipts = [(2, hashes[2], b"a" * 16, 109), (3, hashes[3], b"b" * 16, 0)]
    receipts += [(*position_of(leaves[lease]), lease, 0) for lease in (b"c" * 16, b"e" * 16)]
    sealed = [
        msgpack.packb([0, 0, msgpack.packb({"entry": entry, "entry_hash": hash_, "lease": lease, "weight": paid})])
        for entry, hash_, lease, paid in receipts
    ]
    (tmp_path / "told.json").write_text(json.dumps({"peer": NODE, "receipts": [one.hex() for one in sealed]}))
    done = walled(SECOND / "accounts.py", tmp_path / "true.sqlite", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    replayed = json.loads(done.stdout)
    assert (replayed["earned"], replayed["rank"]) == (109, "new")
    done = walled(SECOND / "accounts.py", tmp_path / "run.sqlite", tmp_path / "told.json")
    assert done.returncode == 1
    assert FORGERIES[what][1] in done.stderr


def evidenced(lease: bytes, code: str, weight: int, peak: int = 3) -> EvidencedOutcome:
    """Return the end of a lease of a class that is not exact."""
    hashes = dict.fromkeys(("calibration", "tokens", "before", "after"), bytes(32))
    end = msgspec.structs.replace(end_of(lease, code, weight), rules=VERDICT_RULES)
    return EvidencedOutcome(**msgspec.structs.asdict(end), **hashes, peak=peak)


def quarantine_of(
    path: Path, released: bool, target: str, day: int = 0, calibration: bytes = b"", peak: int = 3
) -> dict[str, Any]:
    """Write a run.sqlite in which a group of 109 was in quarantine on day 0 and one of 16 on day 1, and the first day
    has ended; return what its node knows. `peak`: of the first day."""
    with closing(Database.open(path)) as database:
        ledger = Ledger(database)
        with database.transaction():
            ledger.issue_points(1_000, 125)
            receipts = []
            for lease, weight, at in ((b"a" * 16, 109, 5), (b"b" * 16, 16, DAY)):
                end = evidenced(lease, "quarantine", weight, peak if at < DAY else 3)
                postings = transfer(ESCROW, quarantine_account(NODE), weight)
                entry = ledger.append(at, "lease.accepted", f"lease:{lease.hex()}", end, postings)
                receipt = {"entry": entry.seq, "entry_hash": entry.hash, "lease": lease, "weight": weight}
                receipts.append(msgpack.packb([0, 0, msgpack.packb(receipt)]).hex())
            facts = {"rules": VERDICT_RULES, "node": NODE, "day": day, "groups": 1, "weight": 109, "released": released}
            fact = QuarantineEnded(**facts, calibration=calibration)  # type: ignore[arg-type]
            postings = transfer(quarantine_account(NODE), target, 109)
            ledger.append(DAY, "quarantine.ended", f"quarantine:{NODE}:{day}", fact, postings)
    return {"peer": NODE, "receipts": receipts}


def reversed_ledger(path: Path) -> dict[str, Any]:
    """Write a run.sqlite in which a group of 109 is taken back, one of 16 is paid after all, and an appeal is answered;
    return what its node knows."""
    with closing(Database.open(path)) as database:
        ledger = Ledger(database)
        accounts, receipts = Accounts(database, ledger), []
        with database.transaction():
            ledger.issue_points(1_000, 1_000)
            for lease, code, weight in ((b"a" * 16, "ok", 109), (b"b" * 16, "drift", 0)):
                end = msgspec.structs.replace(end_of(lease, code, weight), rules=VERDICT_RULES, audited="exact")
                kind, postings = "accepted" if weight else "refused", transfer(ESCROW, accrued_account(NODE), weight)
                entry = ledger.append(5, f"lease.{kind}", f"lease:{lease.hex()}", end, postings)
                accounts.take(entry)
                receipt = {"entry": entry.seq, "entry_hash": entry.hash, "lease": lease, "weight": weight}
                receipts.append(msgpack.packb([0, 0, msgpack.packb(receipt)]).hex())
            answer = AppealAnswered(
                node=NODE, lease=b"b" * 16, by="appeal", asked=6, code="drift", again="ok", reason=""
            )
            ledger.append(7, "appeal.answered", f"appeal:{(b'b' * 16).hex()}:6", answer)
            for lease, code, weight, paid in ((b"b" * 16, "drift", 16, True), (b"a" * 16, "ok", 109, False)):
                fact = LeaseReversed(
                    node=NODE, lease=lease, code=code, paid=paid, weight=weight, audited=True, by="operator", why="x",
                    prompt=1, turns=[[weight // 8 - 1]] if paid else [],
                )  # fmt: skip
                reverse(ledger, accounts, pay_rule("points"), fact, 8)
        rank = accounts.of(public_key(NODE), 9).rank
    return {"peer": NODE, "receipts": receipts, "rank": rank}


def test_the_ledger_replay_follows_reversals_and_appeals(tmp_path: Path) -> None:
    told = reversed_ledger(tmp_path / "run.sqlite")
    (tmp_path / "told.json").write_text(json.dumps(told))
    done = walled(SECOND / "accounts.py", tmp_path / "run.sqlite", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["earned"], json.loads(done.stdout)["rank"]) == (16, told["rank"])


def canary_ledger(path: Path, *, vested: int) -> dict[str, Any]:
    """Write a run.sqlite with a canary of 30, of which `vested` is vested, and a group of 109 that a re-run confirmed;
    return what its node knows."""
    with closing(Database.open(path)) as database:
        ledger = Ledger(database)
        accounts, receipts = Accounts(database, ledger), []
        with database.transaction():
            ledger.issue_points(1_000, 1_000)
            for lease, code, weight, audited in ((b"a" * 16, "canary", 30, "canary"), (b"b" * 16, "ok", 109, "rerun")):
                end = msgspec.structs.replace(end_of(lease, code, weight), rules=VERDICT_RULES, audited=audited)
                account = unvested_account(NODE) if code == "canary" else accrued_account(NODE)
                postings = transfer(ESCROW, account, weight)
                entry = ledger.append(5, "lease.accepted", f"lease:{lease.hex()}", end, postings)
                accounts.take(entry)
                receipt = {"entry": entry.seq, "entry_hash": entry.hash, "lease": lease, "weight": weight}
                receipts.append(msgpack.packb([0, 0, msgpack.packb(receipt)]).hex())
            if vested:
                fact = CanaryVested(node=NODE, lease=b"a" * 16, weight=vested)
                postings = transfer(unvested_account(NODE), accrued_account(NODE), vested)
                ledger.append(6, "canary.vested", f"vested:{(b'a' * 16).hex()}", fact, postings)
        assert accounts.account(public_key(NODE)).audited == 2 << 32
        rank = accounts.of(public_key(NODE), 9).rank
    return {"peer": NODE, "receipts": receipts, "rank": rank}


@pytest.mark.parametrize(("vested", "earned"), [(0, 109), (30, 139)])
def test_the_ledger_replay_follows_canaries_and_groups_that_were_generated_again(
    vested: int, earned: int, tmp_path: Path
) -> None:
    told = canary_ledger(tmp_path / "run.sqlite", vested=vested)
    (tmp_path / "told.json").write_text(json.dumps(told))
    done = walled(SECOND / "accounts.py", tmp_path / "run.sqlite", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["earned"], json.loads(done.stdout)["rank"]) == (earned, told["rank"])


def test_the_ledger_replay_refuses_a_canary_that_vests_more_than_it_earned(tmp_path: Path) -> None:
    told = canary_ledger(tmp_path / "run.sqlite", vested=29)
    (tmp_path / "told.json").write_text(json.dumps(told))
    done = walled(SECOND / "accounts.py", tmp_path / "run.sqlite", tmp_path / "told.json")
    assert done.returncode != 0
    assert "vests other than the canary earned" in done.stderr


@pytest.mark.parametrize(
    ("released", "target", "earned", "rerun", "peak"),
    [
        (True, accrued_account(NODE), 109, b"", 3),
        (False, ESCROW, 0, b"", 3),
        (False, ESCROW, 0, b"", 4),
        (True, accrued_account(NODE), 109, bytes(32), 3),
        (True, accrued_account(NODE), 109, bytes(32), 5),
    ],
)
def test_the_ledger_replay_follows_a_quarantine_to_its_end(
    released: bool, target: str, earned: int, rerun: bytes, peak: int, tmp_path: Path
) -> None:
    """The weight of a settled day is the node's or escrow's, that of the next day is neither's yet."""
    told = quarantine_of(tmp_path / "run.sqlite", released, target, calibration=rerun, peak=peak)
    (tmp_path / "told.json").write_text(json.dumps(told))
    done = walled(SECOND / "accounts.py", tmp_path / "run.sqlite", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    replayed = json.loads(done.stdout)
    assert (replayed["earned"], replayed["balances"][quarantine_account(NODE)]) == (earned, 16)


@pytest.mark.parametrize(
    ("released", "target", "day", "rerun", "peak", "why"),
    [
        (True, ESCROW, 0, b"", 3, "pays other than it says"),
        (False, accrued_account(NODE), 0, b"", 3, "pays other than it says"),
        (True, accrued_account(NODE), 7, b"", 3, "ends another quarantine"),
        (False, ESCROW, 0, bytes(32), 3, "a re-run that does not release"),
        (True, accrued_account(NODE), 0, bytes(31), 3, "a re-run that does not release"),
        (True, accrued_account(NODE), 0, b"", 4, "whose evidence rose too high"),
    ],
)
def test_the_ledger_replay_detects_a_quarantine_that_ends_otherwise(
    released: bool, target: str, day: int, rerun: bytes, peak: int, why: str, tmp_path: Path
) -> None:
    """An entry that moves another weight than was kept, or elsewhere than it says, or too soon, is named."""
    told = quarantine_of(tmp_path / "run.sqlite", released, target, day, rerun, peak)
    (tmp_path / "told.json").write_text(json.dumps(told))
    done = walled(SECOND / "accounts.py", tmp_path / "run.sqlite", tmp_path / "told.json")
    assert done.returncode == 1
    assert why in done.stderr


@pytest.mark.parametrize(("at", "fine"), [(DAY + 7, False), (2 * DAY, True)])
def test_the_ledger_replay_detects_a_group_outside_quarantine_on_a_day_in_doubt(
    at: int, fine: bool, tmp_path: Path
) -> None:
    """After a group in quarantine the others of the key and day are in quarantine too."""
    told = quarantine_of(tmp_path / "run.sqlite", False, ESCROW)
    with closing(Database.open(tmp_path / "run.sqlite")) as database:
        end, postings = evidenced(b"c" * 16, "ok", 8), transfer(ESCROW, accrued_account(NODE), 8)
        entry = Ledger(database).append(at, "lease.accepted", f"lease:{end.lease.hex()}", end, postings)
    receipt = {"entry": entry.seq, "entry_hash": entry.hash, "lease": end.lease, "weight": 8}
    told["receipts"].append(msgpack.packb([0, 0, msgpack.packb(receipt)]).hex())
    (tmp_path / "told.json").write_text(json.dumps(told))
    done = walled(SECOND / "accounts.py", tmp_path / "run.sqlite", tmp_path / "told.json")
    assert (done.returncode == 0) == fine, done.stderr
    assert ("outside quarantine on a day in doubt" in done.stderr) != fine
