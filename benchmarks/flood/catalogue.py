"""The attacks on room, order and prompts, each keyed by one sentence, with its bars.

A calm run is the same run without the attack. In a `KNOWN` run honest nodes have worked for a while when the attack
begins; in a `FRESH` run all nodes are new.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from benchmarks.attacks.floods import (
    Forgers,
    FormerWorkers,
    Hoarders,
    LastSecond,
    Pickers,
    Returners,
    Sleepers,
    Turncoats,
)
from benchmarks.flood.world import Attack, Setting

KNOWN: Final = Setting()
FRESH: Final = replace(KNOWN, before=0.0)
LONG: Final = replace(KNOWN, seconds=900.0)
"""Long enough for a dropped prompt to be leased three times more."""
LONGER: Final = replace(KNOWN, seconds=2700.0)
"""Long enough that a share of one in a hundred of a class's prompts is measurable."""


HOUR: Final = 3600.0


def small(setting: Setting) -> Setting:
    """Return the same run at half its size: half of the honest nodes, batches of half as many groups, as many
    attackers."""
    return replace(setting, nodes=setting.nodes[::2], batch_groups=setting.batch_groups // 2)


class Case(NamedTuple):
    """An attack with its bars. `bar`: least share of the calm run's steps. `spans`: (begin, end) of spans that hold the
    bar one by one, seconds; none: the whole does. `most_groups`: most groups of one key that
    are judged; None: any number. `learned`: least share of the dropped prompts that is learned all the same; None: no
    prompt is dropped. `quick`: part of `--quick`, at half the size unless prompts are dropped."""

    attack: Attack
    setting: Setting = KNOWN
    bar: float = 0.9
    most_groups: int | None = None
    learned: float | None = None
    quick: bool = False
    spans: tuple[tuple[float, float], ...] = ()

    def at(self, quick: bool) -> Setting:
        """Return the setting of a run, quick or in full."""
        return small(self.setting) if quick and self.learned is None else self.setting


CASES: Final[dict[str, Case]] = {
    "1,000 free keys on one connection take leases and return nothing": Case(Hoarders(1000, 1, 1), quick=True),
    "the same in a fresh run": Case(Hoarders(1000, 1, 1), FRESH, 0.7, quick=True),
    "30 keys on 30 connections of one subnet take leases and return nothing": Case(Hoarders(30, 30, 1)),
    "these 30 in a fresh run": Case(Hoarders(30, 30, 1), FRESH, 0.7),
    "40 keys from 40 subnets take leases and return nothing": Case(Hoarders(40, 40, 40), bar=0.7),
    "one key submits made-up groups without end": Case(Forgers(1, 1, 1), most_groups=3, quick=True),
    "1,000 keys on one connection submit made-up groups": Case(Forgers(1000, 1, 1), most_groups=3),
    "10 keys work until they are known, then return nothing": Case(Turncoats(10, 10, 1), bar=0.7),
    "120 keys of 30 subnets with three paid groups each return nothing, for two hours": Case(
        FormerWorkers(120, 120, 30), replace(KNOWN, seconds=2 * HOUR), 0.85, spans=((0.0, HOUR), (HOUR, 2 * HOUR))
    ),
    "40 keys of 20 subnets with three paid groups each return nothing, for an hour": Case(
        FormerWorkers(40, 40, 20), replace(KNOWN, seconds=HOUR), 0.85, spans=((0.0, 600.0), (0.0, HOUR))
    ),
    "10 keys work until they are known, then submit made-up groups": Case(Sleepers(10, 10, 1), most_groups=6, bar=0.7),
    "20 keys give each lease back at once": Case(Returners(20, 5, 1)),
    "10 slow nodes hand in honest groups at the last second": Case(LastSecond(10, 10, 10), bar=0.8, quick=True),
    "80 % of asks let a class of prompts expire": Case(Pickers(24, 24, 24), LONG, 0.8, learned=0.98, quick=True),
    "the same for 45 minutes": Case(Pickers(24, 24, 24), LONGER, 0.8, learned=0.99),
    "80 % of asks give a class of prompts back": Case(Pickers(24, 24, 24, back=True), LONG, 0.8, learned=0.99),
}
