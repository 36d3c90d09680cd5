"""Networks for which broadcasts are planned, and the invariant of every plan."""

import math

from hypothesis import strategies as st

from echo2.p2p.plan.trees import LinkCapacity, PayloadSize, Plan

MB = 1_000_000


LOAD = PayloadSize(40 * MB, 40 * MB // 256)


UPLINKS = st.sampled_from([0.0, 2e5, 1e6, 1.25e6, 5e6, 2e7, 1e8])


LINES = st.lists(
    st.builds(
        LinkCapacity, uplink=UPLINKS, downlink=st.sampled_from([5e5, 1e7, math.inf]),
        latency=st.floats(0.001, 0.2), dialable=st.booleans() | st.just(True),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


def network(number: int, uplink: float = 10.0 * MB, latency: float = 0.01) -> dict[str, LinkCapacity]:
    return {f"p{index}": LinkCapacity(uplink, latency=latency) for index in range(number)}


def reached(plan: Plan, stripe: int) -> set[str]:
    children, reached_peers, waiting = plan.children(stripe), set[str](), [plan.source]
    while waiting:
        fed = children.get(waiting.pop(), [])
        assert not reached_peers & set(fed)
        reached_peers |= set(fed)
        waiting += fed
    return reached_peers


def check(plan: Plan, lines: dict[str, LinkCapacity]) -> None:
    """Check that each stripe reaches every peer exactly once."""
    assert plan.parents.keys() == lines.keys()
    for stripe in range(plan.stripes):
        assert reached(plan, stripe) == lines.keys()
