"""Figures over time: each names the node that does what it looks for, and no honest one."""

import random
from pathlib import Path

import pytest

from echo2.coordinator.command_line.over_time_report import report
from echo2.coordinator.verification.over_time import (
    ALIKE_SHARE,
    MEASURED_GROUPS,
    Figure,
    SeenGroup,
    figures,
    min_hashes,
)
from echo2.p2p.identity import peer_id
from echo2.runtime.errors import LocalFault
from tests.support.group_world import ALICE, BOB, World, group

NODES = [f"node {number}" for number in range(8)]
BAD = NODES[0]


def honest(node: str, number: int, rng: random.Random) -> SeenGroup:
    rollouts = tuple(tuple(rng.randrange(500) for _ in range(30)) for _ in range(4))
    rewards = tuple(float(rng.random() < 0.5) for _ in rollouts)
    return SeenGroup(
        node, "add", ("add", number % 90), number, rewards, rollouts, took=120 * rng.randrange(90, 110),
        near_ties=int(rng.random() < 0.2), sent=15_000 * number, life=3 * 13_000 + 5_000,
    )  # fmt: skip


def fleet(seed: int = 0) -> list[SeenGroup]:
    rng = random.Random(seed)
    return [honest(node, number, rng) for number in range(80) for node in NODES]


FLEET = fleet()


def by_name(node: str, groups: list[SeenGroup]) -> dict[str, Figure]:
    return {one.what: one for one in figures(node, groups)}


@pytest.mark.slow
def test_honest_nodes_lie_within_five_standard_errors() -> None:
    for seed in range(2):
        groups = fleet(seed)
        assert max(abs(one.errors) for node in NODES[:2] for one in figures(node, groups)) < 5


def selects(group: SeenGroup, rng: random.Random) -> SeenGroup:
    return group._replace(rewards=tuple(max(one, float(rng.random() < 0.5)) for one in group.rewards))


def drops(group: SeenGroup, rng: random.Random) -> SeenGroup:
    return group if (group.reward or 0) > 0.3 else SeenGroup(*group[:4])


def copies(group: SeenGroup, rng: random.Random) -> SeenGroup:
    return group._replace(rollouts=FLEET[rng.randrange(8, 600) // 8 * 8 + 3].rollouts)


def shortens(group: SeenGroup, rng: random.Random) -> SeenGroup:
    return group._replace(rollouts=tuple(one[: 12 + rng.randrange(4)] for one in group.rollouts))


def ties(group: SeenGroup, rng: random.Random) -> SeenGroup:
    return group._replace(near_ties=int((group.reward or 0) > 0.5))


def walks(group: SeenGroup, rng: random.Random) -> SeenGroup:
    """Hand in at the end of every other lease."""
    return group if group.position % 2 or group.life is None else group._replace(took=group.life - rng.randrange(2_000))


CHEATS = {
    "reward against the swarm": selects,
    "missing groups": drops,
    "near-duplicates of other nodes": copies,
    "sampled tokens": shortens,
    "milliseconds per sampled token": shortens,
    "groups in the last tenth of their lease": walks,
    "reward of groups with near-ties, less that of others": ties,
}


@pytest.mark.parametrize("what", CHEATS)
def test_each_figure_shows_the_node_that_does_it(what: str) -> None:
    rng = random.Random(1)
    groups = [CHEATS[what](one, rng) if one.node == BAD else one for one in fleet()]
    assert abs(by_name(BAD, groups)[what].errors) > 6


@pytest.mark.slow
def test_leases_of_nodes_that_were_not_measured_yet_and_lost_ones_are_not_among_those_that_end_late() -> None:
    late = [one._replace(took=one.life) if one.position < MEASURED_GROUPS else one for one in fleet()]
    figure = by_name(BAD, late)["groups in the last tenth of their lease"]
    assert (figure.own, figure.others, figure.errors, figure.counted) == (0.0, 0.0, 0.0, 80 - MEASURED_GROUPS)
    left = [SeenGroup(*one[:4]) if one.node == BAD else one for one in late]
    assert "groups in the last tenth of their lease" not in by_name(BAD, left)


def test_prompts_that_a_node_left_and_others_brought_have_low_rewards() -> None:
    groups = fleet()
    for number, one in enumerate(groups):
        if one.position % 4 == 0 and one.node == NODES[1]:
            groups[number] = one._replace(rewards=(0.0, 0.0))
    left = [SeenGroup(*one[:4]) if one.position % 4 == 0 and one.node == BAD else one for one in groups]
    few = [one for one in left if one.position % 4 or one.node in (BAD, NODES[1])]
    assert by_name(BAD, few)["rewards of prompts that others brought after it"].errors < -6


@pytest.mark.slow
def test_twins_and_short_rollouts_are_no_duplicates() -> None:
    groups = fleet()
    twins = [one._replace(rollouts=groups[number // 8 * 8].rollouts) for number, one in enumerate(groups)]
    assert by_name(BAD, twins)["near-duplicates of other nodes"].own == 0.0
    assert min_hashes(range(7)) == ()


def test_min_hashes_estimate_how_alike_two_rollouts_are() -> None:
    one = list(range(200))
    near = [*one[:100], 999, *one[101:]]
    same = sum(a == b for a, b in zip(min_hashes(one), min_hashes(near), strict=True)) / 32
    assert same >= ALIKE_SHARE  # 8 of 193 runs differ: Jaccard 0.92
    assert min_hashes(one) == min_hashes(one)
    assert sum(a == b for a, b in zip(min_hashes(one), min_hashes(range(500, 700)), strict=True)) == 0


@pytest.mark.slow
def test_a_text_that_everybody_gives_costs_no_square() -> None:
    groups = [one._replace(rollouts=((7,) * 30,) * 4) for one in fleet()] * 2
    assert by_name(BAD, groups)["near-duplicates of other nodes"].errors == pytest.approx(0, abs=40)


def test_the_report_reads_a_run(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=100)
    assert "too few groups" in report(world.path, peer_id(ALICE))[0]
    for _ in range(6):
        for node in (ALICE, BOB):
            world.accepted(node)
    lines = report(world.path, peer_id(ALICE))
    assert lines[0].startswith("of 12 leases")
    assert any(line.startswith("sampled tokens") for line in lines)
    with pytest.raises(LocalFault):
        report(world.path, "nobody")


def test_the_report_shows_who_hands_in_at_the_end_of_its_leases(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=100)
    for _ in range(9):
        for node, share in ((ALICE, 19), (BOB, 4)):
            lease = world.lease(node)
            world.now += share * (lease.expires - lease.sent) // 20
            world.submit(group(lease), node)
            world.decide_all()
    (told,) = [line for line in report(world.path, peer_id(ALICE)) if "last tenth" in line]
    assert " ".join(told.split()) == "groups in the last tenth of their lease 1 0 +inf standard errors, 6 values"
