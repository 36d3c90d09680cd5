"""The invariants of a run at every moment, whatever was killed, read from its files while it runs.

Rules
1. Every Receipt in a node's outbox is, byte for byte, the coordinator's verdict of that lease.
2. A lease has at most one verdict and at most one end in the ledger, and the two name each other.
3. The ledger verifies, and its accounts hold what the accepted verdicts weigh.
4. No submission of an honest node was refused, and no node submitted two for one lease.
5. A node's (era, version) never goes back.
6. The learner's checkpoint, with the journal behind it, has drawn whole batches, no group twice, and only groups that
   were accepted and trainable; and it has every published version.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.coordinator.verdicts.stored_receipts import ACCEPTED_CODES
from echo2.ledger.ledger_entries import accrued_account, unvested_account
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.identity import load_key, peer_id, public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Receipt
from tests.faults.processes import Coordinator, Run, Volunteer

_REFUSED = "SELECT node, receipt FROM verdicts WHERE verdict = 'refused'"
_CONFLICTS = "SELECT l.node FROM submissions s JOIN leases l ON l.id = s.lease WHERE s.conflicts > 0"


def check_books(run: Run) -> None:
    """Check rules 1 to 5, at any time."""
    # Receipts first: what a node holds now was durable at the coordinator before.
    receipts_of = {volunteer.name: receipts(volunteer) for volunteer in run.volunteers}
    honest = {public_bytes(load_key(volunteer.home / "node.key", None)) for volunteer in run.volunteers}
    with closing(Database.read(run.coordinator.folder.database)) as database:
        database.do("BEGIN")  # one state of the file for all that follows
        verdicts = dict(database.all("SELECT lease, receipt FROM verdicts"))
        for name, mine in receipts_of.items():
            assert {lease: verdicts.get(lease) for lease in mine} == mine, f"{name} holds what the coordinator does not"
        check_ledger(database)
        refused = [
            decode(decode_unverified(row[1]).payload, Receipt) for row in database.all(_REFUSED) if row[0] in honest
        ]
        assert not refused, f"honest nodes were refused: {[(one.code, one.reason) for one in refused]}"
        assert not honest & {row[0] for row in database.all(_CONFLICTS)}, "an honest node submitted two things"
    for volunteer in run.volunteers:
        versions = volunteer.versions()
        assert versions == sorted(versions), f"{volunteer.name} went back"


def check_ledger(database: Database) -> None:
    """Check rules 2 and 3."""
    ledger = Ledger(database)
    ledger.verify()
    told = [(entry.seq, entry.facts) for entry in ledger.entries() if entry.kind.startswith("lease.")]
    told += [(None, document) for (document,) in database.all("SELECT document FROM ends")]
    ends = [(entry, msgspec.msgpack.decode(facts, type=LeaseOutcome)) for entry, facts in told]
    by_lease = {end.lease: (entry, end) for entry, end in ends}
    assert len(by_lease) == len(ends), "a lease ended twice"
    earned = Counter[bytes]()
    for lease, node, verdict, weight, entry in database.all("SELECT lease, node, verdict, weight, entry FROM verdicts"):
        place, end = by_lease[lease]
        assert (place, end.weight) == (entry, weight)
        assert (end.code in ACCEPTED_CODES) == (verdict == "accepted")
        earned[node] += weight
    peers = {node: peer_id(node) for node in earned}
    paid_to = {
        node: ledger.balance(accrued_account(peer)) + ledger.balance(unvested_account(peer))
        for node, peer in peers.items()
    }
    assert paid_to == dict(earned)


def receipts(volunteer: Volunteer) -> dict[bytes, bytes]:
    """Return lease -> sealed Receipt, from the node's outbox."""
    path: Path = volunteer.data / "outbox.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return dict(database.execute("SELECT lease, receipt FROM submissions WHERE receipt IS NOT NULL").fetchall())


def check_draws(coordinator: Coordinator) -> int:
    """Check rule 6, once the coordinator has ended; return the learner's step."""
    from echo2.coordinator.learner.checkpoints import checkpoint, journal
    from echo2.coordinator.run.setup import load_run

    complaints: list[str] = []
    full = checkpoint.load(coordinator.folder.learner / checkpoint.FOLDER, complaints.append)
    entries = journal.behind(coordinator.folder.learner / journal.FOLDER, full.state, complaints.append)
    assert complaints == []
    state = entries[-1].state if entries else full.state
    batch = load_run(coordinator.home, now=0, env={}).config.run.batch_groups
    # The state keeps the draws of the last steps alone: those that could be drawn again.
    assert len(set(state.drawn)) == len(state.drawn) == len(state.draws) * batch
    with closing(Database.read(coordinator.folder.database)) as database:
        rows = database.all("SELECT lease FROM verdicts WHERE verdict = 'accepted' AND trainable = 1")
        published = database.value("SELECT max(version) FROM versions")
    assert set(state.drawn) <= {row[0] for row in rows}
    assert published <= state.step <= published + 1  # a checkpoint or an entry precedes each publication
    return state.step
