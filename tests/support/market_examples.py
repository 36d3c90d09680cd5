"""Examples of a market's ledger at the edges of its rules: each is a meeting of numbers that generated histories hardly
ever have. Rates are milli-RE per hour; a node with a rate of 1,000,000 and an ask of 100,000 costs 100 per RE."""

from collections.abc import Callable

import msgspec

from echo2.coordinator.market import balance_moves, epochs
from echo2.coordinator.market.entries import AskOpened, BalanceMoved, Forfeited, NewEntry
from echo2.ledger.ledger_entries import ESCROW, FUND, Posting, transfer
from echo2.ledger.ledger_facts import LeaseReversed, QuarantineEnded, Remark, Suspended
from echo2.protocol.sealed_asks import commitment
from echo2.runtime.units import DAY
from tests.support.example_ledger import HOUR, NODES, ExampleLedger

A, B, C, D, E, F, G, *_ = NODES
MILLION = 10**6


class Issued(msgspec.Struct, frozen=True):
    """Facts of `points.issued`."""

    amount: int


def points_that_are_issued(one: ExampleLedger) -> None:
    one.note("points.issued", "points:2", Issued(7), transfer(FUND, ESCROW, 7))
    one.note("points.issued", "points:2", Issued(7))
    one.look()


# prices


def the_others_just_reach_the_need(one: ExampleLedger) -> None:
    one.measure(dict.fromkeys((A, B, C), MILLION))
    one.epoch({A: 100_000, B: 200_000, C: 300_000}, need=2 * MILLION)


def the_others_lack_one_of_the_need(one: ExampleLedger) -> None:
    one.measure(dict.fromkeys((A, B, C), MILLION))
    one.epoch({A: 100_000, B: 200_000, C: 300_000}, need=2 * MILLION + 1)


def owner(need: int) -> Callable[[ExampleLedger], None]:
    """Of an owner's three nodes two fifths of the need count."""

    def write(one: ExampleLedger) -> None:
        one.measure(dict.fromkeys((A, B, C, D, E), MILLION))
        asks = {node: (place + 1) * 100_000 for place, node in enumerate((A, B, C, D, E))}
        one.epoch(asks, need=need, cap=400, owners=dict.fromkeys((A, B, C), b"x"))

    return write


def the_budget_leaves_two_of_three(budget: int) -> Callable[[ExampleLedger], None]:
    def write(one: ExampleLedger) -> None:
        one.measure(dict.fromkeys((A, B, C), MILLION))
        one.epoch(dict.fromkeys((A, B, C), 100_000), need=3 * MILLION, reserve=100, budget=budget)

    return write


def an_active_node_without_work_is_an_incumbent(one: ExampleLedger) -> None:
    one.measure(dict.fromkeys((A, B), MILLION))
    one.epoch({A: 100_000})
    one.close()
    one.epoch({B: 98_000})


# newcomers


def newcomers(rates: dict[str, int], fresh: dict[str, int], **terms: int) -> Callable[[ExampleLedger], None]:
    """`rates`: of measured nodes. `fresh`: of newcomers, in the order of their lots."""

    def write(one: ExampleLedger) -> None:
        for node, rate in fresh.items():
            one.put(epochs.benchmark(one.now, node, rate))
        if rates:
            one.measure(rates)
        one.epoch(dict.fromkeys([*rates, *fresh], 10_000), order=tuple(fresh), **terms)

    return write


def a_node_of_29_groups_is_a_newcomer(one: ExampleLedger) -> None:
    one.measure(dict.fromkeys((A, B), MILLION), groups=29)
    one.measure({B: MILLION}, groups=1)
    one.epoch({A: 100_000, B: 200_000}, need=2 * MILLION)


def newcomers_beside_a_needless_node(one: ExampleLedger) -> None:
    """One is dearer than the first measured node that is not needed, one costs as much."""
    for node in (D, E):
        one.put(epochs.benchmark(one.now, node, MILLION))
    one.measure(dict.fromkeys((A, B, C), MILLION))
    one.epoch({A: 100_000, B: 200_000, C: 300_000, D: 250_000, E: 200_000}, order=(D, E), newcomers=500)


def a_key_that_is_replaced_behind_the_draw(one: ExampleLedger) -> None:
    """Its successor is not offered in that epoch, and is in the next one."""
    one.put(epochs.benchmark(one.now, A, MILLION))
    one.epoch({A: 100_000})
    one.close()
    one.announce_terms()
    one.draw()
    one.rotate(A, B)
    one.open(NODES)
    one.look()
    one.close()
    one.epoch({})


# measurement


def many_intervals(count: int, sent: int, length: int) -> Callable[[ExampleLedger], None]:
    """A node with `count` intervals of 100 ms in as many seconds, and then a lease that began `sent` ms after the first
    of them and ended `length` ms later, and another one."""

    def write(one: ExampleLedger) -> None:
        one.epoch({}, need=0)
        begin = one.now
        for place in range(count):
            one.now = begin + 1_000 * place
            one.lease(A, 7, 100)
        one.close()
        one.epoch({}, need=0)
        last = one.now = one.now + 1_000
        one.now = begin + sent
        one.lease(A, 8, length)
        one.now = last
        one.lease(A, 9, 100)
        one.close()

    return write


def rates_of_which_the_spread_is_exact(one: ExampleLedger) -> None:
    """The rates are 1 and 3 by turns: their error is half over the root of 64."""
    one.epoch({}, need=0)
    for place in range(64):
        one.lease(A, 1_000 + 2_000 * (place % 2), 3_600)
    one.close()


def groups_without_weight_after_some_with_it(one: ExampleLedger) -> None:
    one.epoch({}, need=0)
    one.lease(A, 10**6, 3_600)
    for _ in range(64):
        one.lease(A, 0, 10)
    one.close()


# asks, and the nodes that are present


def asks_beyond_their_limits(one: ExampleLedger) -> None:
    one.announce_terms()
    asks = {A: 10**14, B: 10**14 + 1, C: 1_000, D: 999}
    short = commitment(one.run, E, 1, 1_000, bytes(15))
    one.put(epochs.seal_ask(one.state, one.now, E, 1, short))
    one.seal(asks)
    one.draw()
    for node, ask in {**asks, E: 1_000}.items():
        fact = AskOpened(node=node, epoch=1, ask=ask, salt=bytes(15 if node == E else 16))
        one.beside(NewEntry(one.now, "ask.opened", f"opened:{node}:1", fact))
    one.reveal({A: 10**14, C: 1_000})
    one.open(NODES)


def a_suspension_that_ends_as_the_epoch_opens(one: ExampleLedger) -> None:
    one.put(epochs.benchmark(one.now, A, MILLION))
    one.announce_terms()
    one.seal({A: 1_000})
    one.draw()
    fact = Suspended(node=A, code="drift", evidence=bytes(32), since=one.now, until=one.now + 5)
    one.append("node.suspended", f"key:{A}:{one.ledger.tip().entries + 1}", fact)
    one.reveal({A: 1_000})
    for after in (4, 6):
        one.beside(epochs.open_epoch(one.state, one.now + after, NODES))
    one.now += 5
    one.open(NODES)


def judged(one: ExampleLedger, *steps: str) -> None:
    """Let a node with an ask be suspended for 100 ms, banned, unbanned, or paid for a refused group after all, and open
    an epoch before the end of the suspension and behind it."""
    one.put(epochs.benchmark(one.now, A, MILLION))
    one.announce_terms()
    one.seal({A: 1_000})
    one.draw()
    for step in steps:
        key = f"key:{A}:{one.ledger.tip().entries + 1}"
        if step == "suspended":
            fact = Suspended(node=A, code="drift", evidence=bytes(32), since=one.now, until=one.now + 100)
            one.append("node.suspended", key, fact)
        elif step == "reversed":
            paid = LeaseReversed(node=A, lease=bytes(16), code="drift", paid=True, weight=500, audited=False,
                                 by="operator", why="a check", turns=[[500]], costs=one.costs[0])  # fmt: skip
            one.append("lease.reversed", f"reversed:{paid.lease.hex()}", paid)
        else:
            one.append(f"node.{step}", key, Remark(node=A, why="a test"))
    one.reveal({A: 1_000})
    for after in (50, 101):
        openings(one, after, A)
    one.now += 101
    one.open(NODES)
    one.look()


def openings(one: ExampleLedger, after: int, *nodes: str) -> None:
    """Note openings beside the history, in which one of these nodes is present, whoever is."""
    new = epochs.open_epoch(one.state, one.now + after, NODES)
    one.beside(new)
    for node in nodes:
        one.beside(new, present=[node])


def a_banned_key_that_is_replaced(one: ExampleLedger) -> None:
    """Both keys are banned, until the operator lifts that from one."""
    one.append("node.banned", f"key:{A}:{one.ledger.tip().entries + 1}", Remark(node=A, why="a test"))
    one.rotate(A, B)
    one.rotate(C, D)
    one.announce_terms()
    one.draw()
    openings(one, 1, A, B, C, D)
    one.append("node.unbanned", f"key:{B}:{one.ledger.tip().entries + 1}", Remark(node=B, why="a test"))
    openings(one, 1, A, B, C, D)
    one.open(NODES)
    one.look()


def judgements(*steps: str) -> Callable[[ExampleLedger], None]:
    return lambda one: judged(one, *steps)


# run-offs


def late_run_offs_within_what_is_left(budget: int) -> Callable[[ExampleLedger], None]:
    """The whole budget keeps the three nodes that are here. The run-off of a fourth one, which is gone, leaves enough
    for two of them, and then 70,000 of 370,000: as much as the run-off of the third one costs."""

    def write(one: ExampleLedger) -> None:
        one.measure(dict.fromkeys((A, B, C, D), MILLION))
        one.epoch(dict.fromkeys((A, B, C, D), 100_000), need=4 * MILLION, reserve=100, run_off=DAY, budget=400_000)
        begin = one.now
        for node in (A, B, C):
            one.now = begin
            one.lease(node, 300_000, 1_080_000)
        one.close()
        one.epoch({}, present=(A, B, C), need=3 * MILLION, reserve=100, budget=budget)

    return write


def run_offs_of_which_one_is_covered(budget: int) -> Callable[[ExampleLedger], None]:
    """Two nodes are gone; the second one's run-off is not shortened where the budget covers a part of it."""

    def write(one: ExampleLedger) -> None:
        one.measure(dict.fromkeys((A, B), MILLION))
        one.epoch(dict.fromkeys((A, B), 100_000), need=2 * MILLION, reserve=100, run_off=DAY, budget=200_000)
        one.close()
        one.epoch({}, present=(), budget=budget)
        for node in (A, B):
            one.lease(node, 1_000, 3_600)
        one.close()

    return write


def rows_that_cost_more_than_is_left(done: int) -> Callable[[ExampleLedger], None]:
    """Two nodes stay at half of an odd budget each, so their pay, rounded up, exceeds it by one. Nothing is left for
    the run-off of a third one, which has brought `done` of its work."""

    def write(one: ExampleLedger) -> None:
        one.measure(dict.fromkeys((A, B, C, D), MILLION))
        one.epoch(dict.fromkeys((A, B, C, D), 100_000), need=4 * MILLION, reserve=100, run_off=DAY, budget=400_000)
        one.lease(C, done, HOUR)
        one.close()
        one.epoch({C: 101_000}, present=(A, B, C), need=3 * MILLION, budget=400_001)

    return write


# pay


def work_that_no_lease_ended_with(one: ExampleLedger) -> None:
    """A refused group that is paid after all is paid as well, where its node has no other work."""
    for node in (A, B):
        one.put(epochs.benchmark(one.now, node, MILLION))
    one.epoch({A: 1_000, B: 1_000}, need=2 * MILLION)
    one.lease(A, 1_000, 1_000)
    fact = LeaseReversed(node=B, lease=bytes(16), code="drift", paid=True, weight=500, audited=False, by="operator",
                         why="a check", turns=[[500]], costs=one.costs[0])  # fmt: skip
    one.append("lease.reversed", f"reversed:{fact.lease.hex()}", fact)
    one.close()


def leases_that_ended_as_they_began(one: ExampleLedger) -> None:
    """A node without any leased time has work all the same: its rate is its benchmark at first, then 0."""
    one.put(epochs.benchmark(one.now, A, 7_000))
    one.epoch({A: 1_000})
    for _ in range(29):
        one.lease(A, 1_000)
    one.close()
    one.look()
    one.epoch({A: 1_000})
    one.lease(A, 1_000)
    one.close()


# forfeits


def forfeits_that_do_not_follow(one: ExampleLedger) -> None:
    """A group that stands, one whose epoch is not closed, and one that is taken back and earned nothing."""
    one.put(epochs.benchmark(one.now, A, MILLION))
    one.epoch({A: 100_000})
    stands, taken, light = one.lease(A, 1_000, 1_000), one.lease(A, 500, 1_000), one.lease(A, 0, 1_000)
    one.take_back(taken)
    one.take_back(light)
    for amount in (-1, 0, 1):
        early = Forfeited(node="", lease=taken.lease, amount=amount, lacking=amount, why="")
        one.beside(NewEntry(one.now, "forfeited", f"forfeited:{taken.lease.hex()}", early))
    one.close()
    for lease in (stands, taken, light):
        for amount in (50, 100, 1):
            one.beside(epochs.forfeit(one.state, one.now, A, amount, "a check", lease.lease))
    one.forfeit_of(taken)


def forfeits_of_a_day_in_quarantine(one: ExampleLedger) -> None:
    """One group is of that day, the other of the next one."""
    one.put(epochs.benchmark(one.now, A, MILLION))
    one.epoch({A: 100_000})
    one.now = (one.now // DAY + 1) * DAY - 1_000
    day = one.now // DAY
    first, second = one.lease(A, 1_000, 999, code="quarantine"), one.lease(A, 2_000, 1, code="quarantine")
    one.close()
    fact = QuarantineEnded(rules=3, node=A, day=day, groups=1, weight=1_000, released=False)
    one.append("quarantine.ended", f"quarantine:{A}:{day}", fact)
    for lease, amount in ((first, 100), (second, 200)):
        one.beside(epochs.forfeit(one.state, one.now, A, amount, "a check", lease.lease))


# what vests and is released


def a_tranche_of_which_as_much_is_unvested_as_accrued(one: ExampleLedger) -> None:
    """A quarter of its work is held back: as much as has not vested."""
    one.measure({A: 40 * MILLION})
    one.epoch({A: 4_000_000})
    one.lease(A, 160_000, HOUR)
    one.close()
    one.release()
    one.epoch({})
    one.now += DAY
    one.lease(A, 1_000, 1_000)
    one.close()


def a_close_at_an_earlier_time(one: ExampleLedger) -> None:
    """Of the older work the newest 40 RE are held back; the younger tranche is as old as a day."""
    one.measure({A: 40 * MILLION})
    one.epoch({A: 4_000_000})
    one.lease(A, 160_000, HOUR)
    one.close()
    one.epoch({})
    one.lease(A, 30_000, 1_000)
    later, one.now = one.now, one.now - 2 * DAY
    one.close()
    one.now = later
    one.release()


def all_but_a_millisecond_has_vested(one: ExampleLedger) -> None:
    one.measure({A: MILLION})
    one.epoch({A: 100_000})
    one.lease(A, 10, 1_000)
    one.close()
    one.now += DAY - 1
    one.vest()
    one.now += 1
    one.vest()
    one.release()


# balances of replaced keys


def earned(one: ExampleLedger, node: str, weight: int) -> None:
    """Let a node earn in an epoch of its own."""
    one.put(epochs.benchmark(one.now, node, MILLION))
    one.epoch({node: 100_000}, present=(node,))
    one.lease(node, weight, 1_000)
    one.close()


def a_balance_that_is_disputed(one: ExampleLedger) -> None:
    """From the end of its wait on nothing is held back for want of 10 groups in a row."""
    earned(one, A, 1_000)
    one.rotate(A, B)
    due = one.now + 3 * DAY
    new = balance_moves.dispute(one.state, one.now, A)
    for at in (due - 1, due):
        one.beside(new._replace(at=at, key=f"disputed:{A}:{at}"))
    one.put(new)
    for at in (one.now + 1, due):
        one.beside(new._replace(at=at, key=f"disputed:{A}:{at}"))
    moved = BalanceMoved(node=A, successor=B, accrued=80, unvested=20, payable=0)
    names = ("accrued", 80), ("unvested", 20)
    sums = [(f"node:{node}:{name}", sign * n) for node, sign in ((A, -1), (B, 1)) for name, n in names]
    assert one.ledger.balance(f"node:{A}:accrued") == 80
    one.beside(NewEntry(due, "balance.moved", f"moved:{A}:{due}", moved, tuple(Posting(*each) for each in sums)))
    one.now = due
    one.release()


def a_key_that_takes_over_again(one: ExampleLedger) -> None:
    one.rotate(A, B)
    one.rotate(B, A)


def tranches_that_join(one: ExampleLedger) -> None:
    """The successor has a tranche between two of the key that it replaces, and one of the same close."""
    earned(one, A, 3_000)
    earned(one, B, 2_000)
    one.epoch({A: 100_000, B: 100_000}, need=10**9)
    one.lease(A, 1_000, 1_000)
    one.lease(B, 4_000, 1_000)
    one.close()
    one.rotate(A, B)
    one.now += 3 * DAY
    one.put(balance_moves.move_balance(one.state, one.now, A))


MARKETS: dict[str, Callable[[ExampleLedger], None]] = {
    "points in a market": points_that_are_issued,
    "the others just reach the need": the_others_just_reach_the_need,
    "the others lack one of the need": the_others_lack_one_of_the_need,
    "an owner's share is just reached": owner(5 * MILLION),
    "an owner's share lacks one": owner(5 * MILLION + 3),
    "the budget leaves two of three": the_budget_leaves_two_of_three(250_000),
    "the budget just leaves two of three": the_budget_leaves_two_of_three(200_000),
    "the budget lacks one of two": the_budget_leaves_two_of_three(199_999),
    "an active node without work is an incumbent": an_active_node_without_work_is_an_incumbent,
    **{f"half of the newcomers' share at rates of {rate}": newcomers(
        {A: MILLION}, dict.fromkeys((B, C, D, E, F, G), rate), need=MILLION, newcomers=600)
       for rate in (99_960, 100_000)},
    "newcomers make a measured node needless": newcomers(
        {A: 800_000, B: 100_000}, {C: 60_000, D: 150_000}, need=MILLION),
    "newcomers beyond what is lacking": newcomers(
        {A: 800_000, B: 100_000}, dict.fromkeys((C, D, E), 60_000), need=MILLION),
    "newcomers alone": newcomers({}, dict.fromkeys((A, B, C), 400_000), need=MILLION),
    "newcomers beside a needless node": newcomers_beside_a_needless_node,
    "a key replaced behind the draw": a_key_that_is_replaced_behind_the_draw,
    "29 groups": a_node_of_29_groups_is_a_newcomer,
    "a lease before 64 intervals": many_intervals(64, -500, 900),
    "a lease over all of 64 intervals": many_intervals(64, -500, 70_000),
    "a lease within the oldest of 64": many_intervals(64, -500, 550),
    "a lease before 63 intervals": many_intervals(63, -500, 400),
    "a lease between 64 intervals": many_intervals(64, 1_500, 100),
    "an exact spread": rates_of_which_the_spread_is_exact,
    "groups without weight": groups_without_weight_after_some_with_it,
    "asks beyond their limits": asks_beyond_their_limits,
    "a suspension that ends as the epoch opens": a_suspension_that_ends_as_the_epoch_opens,
    "a key replaced while it is banned": a_banned_key_that_is_replaced,
    **{" ".join(("a key", *steps)): judgements(*steps) for steps in (
        ("suspended", "banned"), ("banned", "suspended"), ("banned", "suspended", "unbanned"),
        ("suspended", "reversed"), ("banned", "suspended", "reversed"), ("suspended", "suspended"))},
    **{f"a late run-off within {budget}": late_run_offs_within_what_is_left(budget) for budget in (369_999, 370_000)},
    **{f"run-offs within {budget}": run_offs_of_which_one_is_covered(budget)
       for budget in (99_999, 100_000, 199_999, 200_000)},
    **{f"a late run-off of {MILLION - done} beside nothing left": rows_that_cost_more_than_is_left(done)
       for done in (MILLION - 5, MILLION)},
    "work without a lease": work_that_no_lease_ended_with,
    "leases that ended as they began": leases_that_ended_as_they_began,
    "forfeits that do not follow": forfeits_that_do_not_follow,
    "forfeits of a day in quarantine": forfeits_of_a_day_in_quarantine,
    "as much unvested as accrued": a_tranche_of_which_as_much_is_unvested_as_accrued,
    "a close at an earlier time": a_close_at_an_earlier_time,
    "all but a millisecond has vested": all_but_a_millisecond_has_vested,
    "a disputed balance": a_balance_that_is_disputed,
    "a key that takes over again": a_key_that_takes_over_again,
    "tranches that join": tranches_that_join,
}  # fmt: skip
