"""Costs come into force by an entry of the ledger, and each weight can be computed again from the entries alone."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.cost_tables import MOST_BYTES, CostTables
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.engines.engine import SampleScore
from echo2.ledger.costs_in_force import CostsSet, stated_costs
from echo2.p2p.envelope import seal
from echo2.p2p.errors import PeerFault
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import encode
from echo2.protocol.group_weights import Costs, GroupLengths, group_weight
from tests.support.costs import COSTS, LEDGER_KEYS, sealed_costs
from tests.support.group_world import RUN, T0, World, group, honest_scores


def outcomes(world: World) -> list[LeaseOutcome]:
    """Return the facts of accepted groups, in order."""
    entries = world.group_service.ledger.entries()
    return [msgspec.msgpack.decode(e.facts, type=LeaseOutcome) for e in entries if e.kind == "lease.accepted"]


def test_costs_count_from_their_entry_on_and_each_weight_follows_from_its_entry(world: World) -> None:
    world.accepted()
    tables = world.group_service.costs
    assert (tables.now.entry, tables.now.costs) == (0, None)
    assert tables.take(sealed_costs(), RUN, LEDGER_KEYS, T0)
    world.accepted()
    before, after = outcomes(world)
    named = world.group_service.ledger.entry(after.costs)
    assert named.kind == "costs.set"
    assert stated_costs(named) == COSTS
    for outcome, costs in ((before, None), (after, COSTS)):
        assert outcome.weight == group_weight(costs, GroupLengths(outcome.prompt, outcome.turns))
    assert before.costs == 0
    assert after.weight != group_weight(None, GroupLengths(after.prompt, after.turns))


def test_a_coordinator_that_starts_again_has_the_costs_of_its_ledger(world: World) -> None:
    world.group_service.costs.take(sealed_costs(), RUN, LEDGER_KEYS, T0)
    assert CostTables(world.group_service.ledger).now == world.group_service.costs.now


def test_older_costs_and_the_same_again_change_nothing(world: World) -> None:
    tables, ledger = world.group_service.costs, world.group_service.ledger
    newer = msgspec.structs.replace(COSTS, at=COSTS.at + 1, decode=31)
    assert tables.take(sealed_costs(), RUN, LEDGER_KEYS, T0)
    assert tables.take(sealed_costs(newer), RUN, LEDGER_KEYS, T0)
    size = ledger.tip().entries
    assert not tables.take(sealed_costs(), RUN, LEDGER_KEYS, T0)
    assert not tables.take(sealed_costs(newer), RUN, LEDGER_KEYS, T0)
    assert ledger.tip().entries == size
    assert tables.now.costs == newer


def forged(kind: str) -> bytes:
    """Return a document that is not the Costs of this run."""
    if kind == "of another run":
        return seal("costs", RUN, encode(msgspec.structs.replace(COSTS, run=b"o" * 32)), generate_key())
    if kind == "signed by another key":
        return seal("costs", RUN, encode(COSTS), generate_key())
    if kind == "of another kind":
        return seal("calibration", RUN, encode(COSTS), generate_key())
    return {"empty": b"", "too long": bytes(MOST_BYTES + 1), "cut off": sealed_costs()[:-1]}[kind]


FORGERIES = ["of another run", "signed by another key", "of another kind", "empty", "too long", "cut off"]


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_document_that_is_not_this_runs_is_refused(kind: str, world: World) -> None:
    with pytest.raises(PeerFault):
        world.group_service.costs.take(forged(kind), RUN, LEDGER_KEYS, T0)
    assert world.group_service.costs.now.costs is None


def test_files_are_read_once_and_bad_ones_are_left_out(world: World, tmp_path: Path) -> None:
    tables = world.group_service.costs
    for number, kind in enumerate(FORGERIES):
        (tmp_path / f"{number}.costs").write_bytes(forged(kind))
    (tmp_path / "8.costs").mkdir()
    (tmp_path / "9.costs").write_bytes(sealed_costs())
    assert tables.read(tmp_path, RUN, LEDGER_KEYS, T0) == [COSTS]
    assert tables.read(tmp_path, RUN, LEDGER_KEYS, T0) == []
    assert tables.read(tmp_path / "nowhere", RUN, LEDGER_KEYS, T0) == []


def test_a_refused_group_that_is_paid_after_all_states_its_lengths_and_weighs_by_the_costs_in_force(
    world: World,
) -> None:
    tables = world.group_service.costs
    tables.take(sealed_costs(), RUN, LEDGER_KEYS, T0)
    lease = world.lease()
    world.submit(group(lease))
    (waiting,) = world.group_service.list_undecided(10)
    wrong = [
        SampleScore(logprobs=one.logprobs, margins=[9.0] * len(one.margins))
        for one in honest_scores(waiting.submission)
    ]
    assert world.decide(waiting, wrong).verdict == "refused"
    entry = world.group_service.verdicts.second.reverse(lease.id, "operator", "a fault of ours", T0)
    fact = msgspec.msgpack.decode(entry.facts)
    assert fact["costs"] == tables.now.entry
    lengths = GroupLengths(fact["prompt"], fact["turns"])
    assert fact["weight"] == group_weight(COSTS, lengths) > 0


def test_the_facts_of_costs_set_name_the_document_by_its_hash(world: World) -> None:
    world.group_service.costs.take(sealed_costs(), RUN, LEDGER_KEYS, T0)
    (entry,) = world.group_service.ledger.entries_with_prefix("costs:")
    fact = msgspec.msgpack.decode(entry.facts, type=CostsSet)
    assert fact.sealed == sealed_costs()
    assert entry.key == f"costs:{fact.costs.hex()}"
    assert isinstance(stated_costs(entry), Costs)
