"""The product opens the synthetic long run of the load benchmark as its own."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing

from benchmarks.attacks.light_node import Terms
from benchmarks.load import cost, goodput
from benchmarks.load.crowd import Member, Policy
from benchmarks.load.large import make_large, shape_of
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.node_registry import NodeRegistry
from echo2.coordinator.verdicts.token_storage import TokenStorage
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, Submission
from echo2.protocol.requests import Refusal, Response
from echo2.weights.store import Store

NOW = 1_700_000_000_000


class StandInPeer:
    """A peer whose requests get the given answers in turn."""

    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        return encode(self.answers.pop(0))


def test_the_idle_node_that_gets_the_lease_is_counted_as_no_refused_one() -> None:
    """Before, it counted as a node that is told to wait for one second, and requested leases on."""
    terms = Terms(run=bytes(32), recipient=bytes(32), task="sum", task_version=1, era=1, version=0, root=bytes(32))
    refusal = Refusal(code="full", sentence="no room", retry_after=4000)
    granted, refused = Response(body=b"a lease"), Response(refusal=refusal)

    async def main() -> Counter[str]:
        counts: Counter[str] = Counter()
        for answers in ([granted], [refused, refused, granted]):
            await Member(Policy(terms), StandInPeer(*answers), "coordinator", counts).idle(0.0, 0.0)  # type: ignore[arg-type]
        return counts

    counts = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (counts["asks"], counts["told"]) == (2, 2 * 4000)


@pytest.mark.slow
def test_a_made_up_run_has_a_true_ledger_and_documents_that_decode(tmp_path: Path) -> None:
    shape = shape_of(500, now=NOW)
    run = make_large(tmp_path / "run", shape)
    with Database.open(run.folder.database) as database:
        ledger = Ledger(database)
        assert ledger.verify().entries == 1 + 500
        assert database.value("SELECT count(*) FROM leases WHERE state = 'open'") == shape.open
        assert database.value("SELECT count(*) FROM verdicts WHERE verdict = 'refused'") == 10
        assert database.value("SELECT count(*) FROM leases WHERE state = 'expired'") == 9, (
            "the last undrawn ones never are"
        )
        assert all(known.addresses for known in NodeRegistry(database).records(NOW))
        for document, payload in database.all(
            "SELECT l.document, s.payload FROM leases l JOIN submissions s ON s.lease = l.id"
        ):
            assert decode(document, Lease).id == decode(payload, Submission).lease


@pytest.mark.slow
def test_of_groups_older_than_the_window_there_is_what_a_coordinator_leaves(tmp_path: Path) -> None:
    """Else it deletes them while its ticks are measured."""
    shape = dataclasses.replace(shape_of(500, now=NOW), kept=20_000)
    run = make_large(tmp_path / "run", shape)
    with Database.open(run.folder.database) as database:
        assert database.value("SELECT count(*) FROM leases WHERE sealed = x''") > 100
        assert database.value("SELECT count(*) FROM submissions WHERE payload IS NOT NULL") > 300
        assert Ledger(database).verify().entries == 1 + 500
        tokens, newest = TokenStorage(database), shape.versions - 1
        assert tokens.forget([], newest, 1, 4, NOW - shape.kept) == 0
        assert tokens.forget([], newest, 1, 4, NOW) > 0


@pytest.mark.slow
def test_its_store_leads_from_the_first_version_to_the_last(tmp_path: Path) -> None:
    shape = shape_of(1_000, now=NOW)
    run = make_large(tmp_path / "run", shape)
    with Store(run.folder.store) as store:
        assert [one.version for one in store.documents("published")] == list(range(100))
        assert len(store.snapshots()) == 2
        versions = {file.version for file in store.payloads()}
        assert {0, *range(65, 100)} <= versions


@pytest.mark.slow
def test_a_group_is_leased_judged_and_confirmed_by_a_coordinator_without_a_network() -> None:
    measured = cost.measured(cost.Size(2, 4), groups=4, turns=1)
    assert measured.main > 0
    assert measured.anchor > 0


@pytest.mark.slow
def test_a_real_coordinator_accepts_the_groups_of_many_light_nodes() -> None:
    measured = goodput.measured(8.0, 8.0, commit=0.0)
    assert measured.offered == 8.0
    assert measured.accepted > 4.0
