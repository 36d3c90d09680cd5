"""One coordinator and two nodes as real processes over libp2p. They are killed, stopped, moved and sent forgeries while
they learn. After each fault the run continues, and Receipts and ledger agree (tests.faults.audit)."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.attacks.attack_client import AttackRefused, Client
from benchmarks.attacks.forgeries import FORGERIES, Forgery
from echo2.coordinator.verdicts.stored_receipts import ACCEPTED_CODES
from tests.faults.audit import check_books, check_draws
from tests.faults.liar import liar_at
from tests.faults.processes import ROOT, Program, Run, Volunteer, running, until
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def run(template: Path) -> Iterator[Run]:
    """Start one run for all tests here, because a start takes long. Each test leaves it complete and running."""
    with quick_folder() as folder, running(template, folder, "ann", "bob") as running_run:
        running_run.coordinator.past(3)
        for volunteer in running_run.volunteers:
            until(f"{volunteer.name} has a Receipt", volunteer.accepted)
        yield running_run


def goes_on(run: Run) -> None:
    """Wait for new versions and for accepted work of every node; then check Receipts and ledger."""
    done = {volunteer: volunteer.accepted() for volunteer in run.volunteers}
    now = until("the coordinator answers", run.coordinator.state).version
    run.coordinator.past(now + 2)
    for volunteer, before in done.items():
        until(f"{volunteer.name} is credited again", lambda v=volunteer, b=before: v.accepted() > b)
    programs: list[Program] = [run.coordinator, *run.volunteers]
    until("no orphan is left", lambda: not [process for program in programs for process in program.orphans()])
    check_books(run)


def at_a_moment(run: Run, after: float) -> None:
    """Wait until `after` seconds past the appearance of a version."""
    run.coordinator.past(run.coordinator.state().version)
    time.sleep(after)


def test_learner_scorer_and_an_engine_killed_in_one_moment_cost_no_refusal(run: Run) -> None:
    at_a_moment(run, 0.0)
    run.coordinator.kill_children("learner", "scorer")
    run.volunteers[0].kill_children("engine")
    goes_on(run)


@pytest.mark.parametrize("after", [0.0, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("role", ["learner", "scorer", "engine"])
def test_the_run_goes_on_after_kill_9_of_a_model_process(run: Run, role: str, after: float) -> None:
    program: Program = run.volunteers[0] if role == "engine" else run.coordinator
    at_a_moment(run, after)
    program.kill_children(role)
    goes_on(run)


MOMENTS = [0.0, 0.05, 0.1, 0.2]
"""Seconds after a version has come out."""


@pytest.mark.parametrize("after", MOMENTS)
def test_a_node_that_is_killed_comes_back_with_its_outbox(run: Run, after: float) -> None:
    bob = run.volunteers[1]
    at_a_moment(run, after)
    bob.kill()
    until("its engine has ended by itself", lambda: not bob.orphans())
    check_books(run)
    bob.start()
    goes_on(run)


@pytest.mark.parametrize("after", MOMENTS)
def test_a_coordinator_that_is_killed_goes_on_at_another_port_where_it_is_found(run: Run, after: float) -> None:
    was, invite = run.coordinator.state(), run.coordinator.invite()
    at_a_moment(run, after)
    run.coordinator.kill()
    until("learner and scorer have ended by themselves", lambda: not run.coordinator.orphans())
    check_books(run)
    run.coordinator.start()  # /tcp/0: another port
    assert run.coordinator.invite() != invite
    goes_on(run)
    now = run.coordinator.state()
    assert (now.era, now.version, now.accepted) > (was.era, was.version, was.accepted)


def test_a_stopped_node_delays_no_other_and_continues_when_resumed(run: Run) -> None:
    ann, bob = run.volunteers
    ann.send(signal.SIGSTOP)
    try:
        before = bob.accepted()
        run.coordinator.past(run.coordinator.state().version + 2)
        until("the other is credited", lambda: bob.accepted() > before)
    finally:
        ann.send(signal.SIGCONT)
    goes_on(run)


def test_a_coordinator_that_is_stopped_for_half_a_minute_costs_no_node(run: Run) -> None:
    run.coordinator.send(signal.SIGSTOP)
    time.sleep(30)  # beyond the network's patience of 20 s: streams are reset
    run.coordinator.send(signal.SIGCONT)
    goes_on(run)
    assert all(volunteer.alive for volunteer in run.volunteers)


def test_everything_killed_at_once_and_started_again_goes_on(run: Run) -> None:
    for program in (run.coordinator, *run.volunteers):
        program.kill()
    until("no orphan is left", lambda: not any(p.orphans() for p in (run.coordinator, *run.volunteers)))
    run.coordinator.start()
    invite = run.coordinator.invite()  # everybody has another port now, and nobody knows a port of anybody
    for volunteer in run.volunteers:
        volunteer.start(invite)
    goes_on(run)


@pytest.mark.parametrize("lie", FORGERIES)
async def test_a_forgery_is_refused_by_its_code_and_the_same_nodes_honest_work_is_accepted(run: Run, lie: str) -> None:
    tell, right = FORGERIES[lie]
    async with liar_at(run.coordinator) as liar:
        assert await _told(tell, liar) in right
        assert await liar.verdict(liar.work(await liar.lease())) in ACCEPTED_CODES
    assert run.coordinator.alive
    assert all(run.coordinator.row(volunteer).refused == 0 for volunteer in run.volunteers)


def test_a_node_shows_its_owner_why_its_groups_are_refused(run: Run) -> None:
    saboteur = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/faults/saboteur'}"}
    mallory = Volunteer(run.folder, "mallory", saboteur)
    try:
        mallory.start(run.coordinator.invite())
        refusals = until("it was refused for each of its lies", lambda: _refusals(mallory))
        assert set(refusals) == {"drift-median", "incomplete"}
        assert refusals["drift-median"].startswith("Sample 0: log-probabilities off by 0.0005")
        assert refusals["incomplete"] == "A group of 4 rollouts was leased, 3 came."
        until("its honest groups are taken", mallory.accepted)
        assert run.coordinator.row(mallory).refusals.keys() == set(refusals)
    finally:
        mallory.end()
    goes_on(run)


def _refusals(volunteer: Volunteer) -> dict[str, str] | None:
    """Wait for two refusals; return code -> sentence. An incomplete group is refused before any is scored."""
    if len({event.get("code") for event in volunteer.lines() if event.get("event") == "group refused"}) < 2:
        return None
    return {row["code"]: row["reason"] for row in volunteer.ask("why")["groups_refused"]}


async def _told(tell: Forgery, liar: Client) -> str:
    """Return the code of the answer, a Receipt or a Refusal."""
    try:
        return await tell(liar)
    except AttackRefused as refused:
        return refused.code


def test_on_an_order_to_end_every_process_ends_and_the_ledger_agrees(run: Run) -> None:
    """The last test of the run: it ends it."""
    for volunteer in run.volunteers:
        volunteer.send(signal.SIGTERM)
    assert [volunteer.wait() for volunteer in run.volunteers] == [0, 0]
    run.coordinator.send(signal.SIGTERM)
    assert run.coordinator.wait() == 0
    assert not run.coordinator.orphans()
    assert not any(volunteer.orphans() for volunteer in run.volunteers)
    check_books(run)
    assert check_draws(run.coordinator) > 10
