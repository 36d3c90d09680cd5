"""Choose the leases that are recalled because their groups can no longer be drawn, and their nodes have not begun them.

Rules
1. After step s, groups of version v or older are drawn in at most S + v + 1 - s further steps, `batch` per step, oldest
   version first. Of those that are buffered, undecided or open, all beyond (S + v + 1 - s) x batch cannot be drawn.
2. At each publication as many open leases are recalled, oldest version first, then in the order in which they were
   sent. No token is read.
3. A lease counts as not begun if the node's last report names it as waiting (`LeaseReport.waiting`). A node that
   reports nothing has begun all its leases.
4. The node hears of it in its next answer (`Response.ended`). It gives the lease back if it has not begun meanwhile;
   else the group is finished, checked and credited as always. So no group is lost that a node began in good faith.
5. A recalled lease that is given back ends with the code `superseded`, which counts against nobody: neither in the
   budget of its node (expiry_budgets.py) nor as a refused group. Its prompt goes out again as after an expiry. But the
   node must have worked on other leases while this one waited: it has begun one that is open, or has handed in a group
   since this one was sent. Else the lease counts as given back (`declined`): a node that begins nothing and waits for
   each recall would take leases from others for ever, at no cost (expiry_budgets.py, rule 5).
6. Its node stays reliable for returned prompts (prompt_positions.py, rule 2), and the time is none in which it had a
   lease (delivery_record.py, rule 3), if it has handed in no group of a later lease. A node begins its leases in order,
   so a node that lets a prompt wait until it is recalled can do nothing else meanwhile.
7. The last reports of at most `MOST_RECALLED_NODES` nodes, and the recalled leases while they are open, are kept in
   memory. The waiting leases are looked up only if some groups cannot be drawn, and not node by node: the learner waits
   meanwhile.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

MOST_RECALLED_NODES: Final = 4096


class VersionLoad(NamedTuple):
    """Groups of one version that may still reach the learner: those that are buffered, undecided or open."""

    version: int
    groups: int


class WaitingLease(NamedTuple):
    """An open lease that its node has not begun. `sent`: ms."""

    version: int
    sent: int
    lease: bytes


def to_recall(
    loads: Iterable[VersionLoad], waiting: Iterable[WaitingLease], staleness: int, step: int, batch: int
) -> list[WaitingLease]:
    """Return the leases to recall, in order (rules 1 and 2)."""
    left, ended, drawable = sorted(waiting), list[WaitingLease](), 0
    for version, groups in sorted(loads):
        drawn = max(0, staleness + version + 1 - step) * batch
        ending = _first(left, version, drawable + groups - drawn)
        left = left[len(ending) :]
        ended += ending
        drawable = min(drawable + groups - len(ending), drawn)
    return ended


def any_beyond(loads: Iterable[VersionLoad], staleness: int, step: int, batch: int) -> bool:
    """Tell whether some groups cannot be drawn: else no lease is recalled, whatever waits."""
    drawable = 0
    for version, groups in sorted(loads):
        drawable += groups
        if drawable > max(0, staleness + version + 1 - step) * batch:
            return True
    return False


def _first(waiting: Sequence[WaitingLease], version: int, most: int) -> list[WaitingLease]:
    """Return at most `most` leases of `version` or older."""
    return [one for one in waiting[: max(0, most)] if one.version <= version]


class WaitingReports:
    """The leases that nodes reported as not begun (rules 3 and 7)."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[bytes, frozenset[bytes]] = OrderedDict()

    def note(self, node: bytes, waiting: Collection[bytes]) -> None:
        """Note a node's report, in place of its last one."""
        self._waiting.pop(node, None)
        if waiting:
            self._waiting[node] = frozenset(waiting)
        while len(self._waiting) > MOST_RECALLED_NODES:
            self._waiting.popitem(last=False)

    def by_node(self) -> Mapping[bytes, frozenset[bytes]]:
        return self._waiting


class RecalledLeases:
    """The open leases that were recalled (rules 4, 5 and 7)."""

    def __init__(self) -> None:
        self._version_of: dict[bytes, int] = {}

    def __contains__(self, lease: bytes) -> bool:
        return lease in self._version_of

    def add(self, leases: Iterable[WaitingLease]) -> None:
        self._version_of |= {one.lease: one.version for one in leases}

    def keep(self, still_open: Callable[[Collection[bytes]], Collection[bytes]]) -> None:
        """Forget those that are no longer open. `still_open`: returns those of these leases that are."""
        left = still_open(list(self._version_of))
        self._version_of = {lease: version for lease, version in self._version_of.items() if lease in left}

    def by_version(self) -> Counter[int]:
        return Counter(self._version_of.values())
