"""kill -9 of a node in mid-lease of a long answer: another process finishes the group, and the books are right."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.p2p.identity import load_key, public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol.group_weights import rollout_points
from echo2.protocol.leases import Lease, Submission
from tests.faults.audit import check_books
from tests.faults.processes import Run, Volunteer, make_template, running, until
from tests.support.quick_disk import quick_folder

pytestmark = pytest.mark.slow
SLOW = Path(__file__).parent / "slow_engine"
LEASES = {"minimum_seconds": 90.0, "maximum_seconds": 120.0, "move": True, "report_seconds": 2.0}


def value(run: Run, query: str, *given: object) -> int:
    with closing(Database.read(run.coordinator.folder.database)) as database:
        return int(database.value(query, given) or 0)


def told(run: Run, node: Volunteer) -> int:
    """Return the leases of a node of which enough is told: as many tokens as the prompts have."""
    query = (
        "SELECT b.samples FROM begun_groups b JOIN leases l ON l.id = b.lease WHERE b.state = 'reported' AND l.node = ?"
    )
    key = public_bytes(load_key(node.home / "node.key", None))
    with closing(Database.read(run.coordinator.folder.database)) as database:
        samples = [msgspec.msgpack.decode(row[0]) for row in database.all(query, (key,))]
    return sum(sum(tokens for tokens, _ in one) >= 30 for one in samples)


def tally(run: Run, name: str) -> int:
    return value(run, "SELECT value FROM tallies WHERE name = ?", name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_node_killed_in_mid_lease_is_finished_by_another_process(tmp_path: Path, comes_back: bool) -> None:
    with quick_folder() as folder:
        template = make_template(folder / "run", {"limit": 64, "batch_groups": 4000}, leases=LEASES)
        with running(template, tmp_path) as run:
            flag = tmp_path / "slow"
            env = {"SLOW_WHILE": str(flag), "PYTHONPATH": str(SLOW)}
            alice, bob = run.volunteer("alice", env=env), run.volunteer("bob", env=env)
            until("both are known", lambda: min(alice.accepted(), bob.accepted()) >= 4)
            flag.touch()
            until("a long group is told", lambda: told(run, alice))
            alice.kill()
            flag.unlink()  # the other groups under way are to be in time, however busy the machine is
            if comes_back:
                alice.start(run.coordinator.invite())
            until("its tokens hold", lambda: tally(run, "moved leases"))
            until("another has finished it", lambda: tally(run, "finished tokens"))
            check_books(run)
            assert run.coordinator.state().refused.keys() <= {"late"}
            check_pay(run)


def check_pay(run: Run) -> None:
    """Check that both nodes together earned one group, which was put into the buffer once."""
    with closing(Database.read(run.coordinator.folder.database)) as database:
        facts = {entry.key: msgspec.msgpack.decode(entry.facts) for entry in Ledger(database).entries()}
        rows = database.all(
            "SELECT l.document, s.payload, v.weight, o.id FROM leases l JOIN submissions s ON s.lease = l.id"
            " JOIN verdicts v ON v.lease = l.id JOIN leases o ON o.position = l.position AND o.attempt = l.attempt"
            " WHERE l.twin = 'finish' AND o.twin = '' AND v.verdict = 'accepted'"
        )
        assert rows
        for document, payload, weight, lost in rows:
            lease, group = decode(document, Lease), decode(payload, Submission)
            assert all(one.tokens[: len(b)] == b for one, b in zip(group.rollouts, lease.begun, strict=True))
            paid = facts[f"begun:{lost.hex()}"]["weight"]
            assert paid + weight == sum(rollout_points(len(lease.prompt) + len(one.tokens)) for one in group.rollouts)
            learned = "SELECT count(*) FROM buffer b JOIN leases l ON l.id = b.lease WHERE l.position ="
            assert database.value(f"{learned} (SELECT position FROM leases WHERE id = ?)", (lease.id,)) == 1
