"""Compare the groups of one node over time with those of all others: evidence for a person, never a verdict. Pure.

Rules
1. Each `Figure` compares a mean over the node's groups with that over the others', and states how many standard errors
   lie between them (Welch). Figures with fewer than `LEAST_VALUES` values on a side are left out.
2. *Reward against the swarm*: a group's mean reward less that of other nodes' groups of the same prompt, where there
   are any, else of the same task.
3. *Missing groups*: leases that ended without a group. *Returned by others*: the rewards of prompts that the node did
   not bring and another node then brought, less the task's mean. A node that drops what turned out badly leaves prompts
   with low rewards behind.
4. *Near-duplicates*: the share of a node's rollouts of which some rollout by another node, of another prompt, has a
   Jaccard index of `ALIKE_SHARE` or more over runs of `SHINGLE` tokens, estimated by MinHash (Broder 1997) with
   `HASHES` hashes in bands. Twins have one prompt, and are equal by right.
5. *Lengths* and *time to return* are means of sampled tokens, and of milliseconds per sampled token.
6. *Last tenth of the lease*: the share of groups that came there, of those behind the node's first `MEASURED_GROUPS`. A
   lease lasts three times its node's measured turnaround or longer (coordinator/leases/lease_lifetime.py), so each of
   them came far beyond that. A node that hands in as late as it may is paid for work that is too old to learn from.
7. *Choices within the margin and reward*: the mean reward of groups with near-ties less that of the node's others. A
   node that picks among tokens within the margin by their outcome has more reward where it has more of them.
"""

import hashlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

LEAST_VALUES: Final = 5
SHINGLE: Final = 8
"""Tokens."""
HASHES: Final = 32
BAND: Final = 8
"""Hashes per band: rollouts that agree in a band are compared."""
ALIKE_SHARE: Final = 0.8
MEASURED_GROUPS: Final = 3
"""Groups after which the length of a node's leases follows from its own turnaround."""
MOST_IN_BAND: Final = 64
"""Rollouts of one band that are compared: a text that everybody gives costs no square of their number."""


class SeenGroup(NamedTuple):
    """A decided or missing group. `prompt`: task and index. `rewards`: rewards of its rollouts; empty: none.
    `rollouts`: their sampled tokens. `took`: ms from lease to receipt; None: it never came. `near_ties`: None: not
    counted. `position`: position in the run's order, which a lease that is given again keeps. `sent`: when the lease
    was, ms. `life`: ms from then to its end; None: not known."""

    node: str
    task: str
    prompt: tuple[str, int]
    position: int
    rewards: tuple[float, ...] = ()
    rollouts: tuple[tuple[int, ...], ...] = ()
    took: int | None = None
    near_ties: int | None = None
    sent: int = 0
    life: int | None = None

    @property
    def reward(self) -> float | None:
        return statistics.fmean(self.rewards) if self.rewards else None


class Figure(NamedTuple):
    """One comparison. `errors`: standard errors between `own` and `others`; `counted`: values of the node."""

    what: str
    own: float
    others: float
    errors: float
    counted: int


def figures(node: str, groups: Sequence[SeenGroup]) -> list[Figure]:
    """Return the figures of one node beside all others."""
    own, others = [one for one in groups if one.node == node], [one for one in groups if one.node != node]
    against = _against(groups)
    pairs: dict[str, tuple[Iterable[float], Iterable[float]]] = {
        "reward against the swarm": (_excess(own, against), _excess(others, against)),
        "missing groups": (_missing(own), _missing(others)),
        "rewards of prompts that others brought after it": (
            _reward_residuals(node, groups, against),
            [0.0] * LEAST_VALUES,
        ),
        "near-duplicates of other nodes": _duplicates(node, groups),
        "sampled tokens": (_lengths(own), _lengths(others)),
        "milliseconds per sampled token": (_times(own), _times(others)),
        "groups in the last tenth of their lease": (_at_the_end(own), _at_the_end(others)),
        "reward of groups with near-ties, less that of others": _near_tied(own, against),
    }
    figures_of = [_figure(what, list(one), list(other)) for what, (one, other) in pairs.items()]
    return [figure for figure in figures_of if figure is not None]


def _figure(what: str, own: list[float], others: list[float]) -> Figure | None:
    if min(len(own), len(others)) < LEAST_VALUES:
        return None
    spread = sum(float(np.var(values, ddof=1)) / len(values) for values in (own, others))
    apart = statistics.fmean(own) - statistics.fmean(others)
    errors = apart / math.sqrt(spread) if spread > 0 else 0.0 if apart == 0 else math.copysign(math.inf, apart)
    return Figure(what, statistics.fmean(own), statistics.fmean(others), errors, len(own))


class _Against:
    """Sums of rewards by prompt and task, from which a node's own are taken out."""

    def __init__(self) -> None:
        self.sums: defaultdict[object, Counter[str]] = defaultdict(Counter)
        self.counts: defaultdict[object, Counter[str]] = defaultdict(Counter)

    def add(self, group: SeenGroup, reward: float) -> None:
        for key in (group.prompt, group.task):
            self.sums[key][group.node] += reward  # type: ignore[assignment]
            self.counts[key][group.node] += 1

    def mean(self, node: str, *keys: object) -> float | None:
        """Return the others' mean reward under the first key that has any."""
        for key in keys:
            count = self.counts[key].total() - self.counts[key][node]
            if count:
                return (sum(self.sums[key].values()) - self.sums[key][node]) / count
        return None


def _against(groups: Iterable[SeenGroup]) -> _Against:
    against = _Against()
    for group in groups:
        if group.reward is not None:
            against.add(group, group.reward)
    return against


def _excess(groups: Iterable[SeenGroup], against: _Against) -> list[float]:
    means = [(one.reward, against.mean(one.node, one.prompt, one.task)) for one in groups]
    return [reward - mean for reward, mean in means if reward is not None and mean is not None]


def _missing(groups: Iterable[SeenGroup]) -> list[float]:
    return [float(group.took is None) for group in groups]


def _reward_residuals(node: str, groups: Sequence[SeenGroup], against: _Against) -> list[float]:
    dropped = {one.position for one in groups if one.node == node and one.took is None}
    brought = [one for one in groups if one.node != node and one.position in dropped and one.reward is not None]
    means = [(one.reward, against.mean(one.node, one.task)) for one in brought]
    return [reward - mean for reward, mean in means if reward is not None and mean is not None]


def _lengths(groups: Iterable[SeenGroup]) -> list[float]:
    return [float(len(tokens)) for group in groups for tokens in group.rollouts]


def _times(groups: Iterable[SeenGroup]) -> list[float]:
    counted = ((one.took, sum(map(len, one.rollouts))) for one in groups)
    return [took / tokens for took, tokens in counted if took is not None and tokens]


def _at_the_end(groups: Sequence[SeenGroup]) -> list[float]:
    """Return of each group, but for the first of each node, whether it came in the last tenth of its lease (rule 6)."""
    flags, seen = list[float](), Counter[str]()
    for group in sorted(groups, key=lambda one: one.sent):
        if group.took is None or group.life is None:
            continue
        seen[group.node] += 1
        if seen[group.node] > MEASURED_GROUPS:
            flags.append(float(10 * group.took >= 9 * group.life))
    return flags


def _near_tied(own: Sequence[SeenGroup], against: _Against) -> tuple[list[float], list[float]]:
    tied = _excess((one for one in own if one.near_ties), against)
    return tied, _excess((one for one in own if one.near_ties == 0), against)


def _duplicates(node: str, groups: Sequence[SeenGroup]) -> tuple[list[float], list[float]]:
    rollouts = [(one.node, one.prompt, min_hashes(tokens)) for one in groups for tokens in one.rollouts]
    bands: defaultdict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, (_, _, hashes) in enumerate(rollouts):
        for start in range(0, len(hashes), BAND):
            bands[start, hashes[start : start + BAND]].append(number)
    alike: set[int] = set()
    for members in bands.values():
        for one in members[:MOST_IN_BAND]:
            if one not in alike and any(_copies(rollouts[one], rollouts[other]) for other in members[:MOST_IN_BAND]):
                alike.add(one)
    flags = [(owner == node, float(number in alike)) for number, (owner, _, hashes) in enumerate(rollouts) if hashes]
    return [flag for own, flag in flags if own], [flag for own, flag in flags if not own]


_Rollout = tuple[str, tuple[str, int], tuple[int, ...]]


def _copies(one: _Rollout, other: _Rollout) -> bool:
    same = sum(left == right for left, right in zip(one[2], other[2], strict=True))
    return one[0] != other[0] and one[1] != other[1] and same >= ALIKE_SHARE * HASHES


def min_hashes(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the MinHash of a rollout; empty: it is shorter than `SHINGLE`."""
    if len(tokens) < SHINGLE:
        return ()
    runs = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.uint64), SHINGLE)
    sums = (runs * _ODDS[:SHINGLE]).sum(axis=1, dtype=np.uint64)
    mixed = (sums ^ (sums >> np.uint64(31)))[:, None] * _ODDS
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODDS[::-1]
    return tuple(mixed.min(axis=0).tolist())


_ODDS: Final = np.array(
    [int.from_bytes(hashlib.blake2b(b"%d" % number, digest_size=8).digest()) | 1 for number in range(HASHES)], np.uint64
)
