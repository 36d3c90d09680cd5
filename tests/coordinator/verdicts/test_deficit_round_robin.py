"""The order in which groups are scored: each party gets its share of tokens, however many groups of others wait."""

import itertools
from collections import Counter, deque
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.verdicts.deficit_round_robin import DeficitRoundRobin, OldestGroup


class Queues:
    """Waiting groups in memory: the costs of each party's groups in the order of receipt."""

    def __init__(self, costs: dict[str, list[int]]) -> None:
        self.waiting = {party: deque(given) for party, given in costs.items()}
        self.order = DeficitRoundRobin()
        self.served: list[tuple[str, int]] = []

    def oldest(self, party: str) -> OldestGroup | None:
        queue = self.waiting.get(party)
        return OldestGroup(party, 0, b"", queue[0]) if queue else None

    def after(self, party: str | None) -> OldestGroup | None:
        names = sorted(name for name, queue in self.waiting.items() if queue and (party is None or name > party))
        return self.oldest(names[0]) if names else None

    def serve(self) -> str | None:
        """Serve one group; return its party."""
        head = self.order.next(self.oldest, self.after)
        if head is None:
            return None
        assert self.waiting[head.party].popleft() == head.cost
        self.served.append((head.party, head.cost))
        return head.party

    def all(self) -> Iterator[str]:
        while (party := self.serve()) is not None:
            yield party


COSTS = st.lists(st.integers(1, 1_000), max_size=30)
PARTIES = st.dictionaries(st.sampled_from("abcdefgh"), COSTS, min_size=1)


def test_a_single_group_beside_a_thousand_of_another_party_waits_for_one_of_them() -> None:
    queues = Queues({"a": [100] * 1_000})
    assert [queues.serve() for _ in range(10)] == ["a"] * 10
    queues.waiting["b"] = deque([100])
    assert [queues.serve(), queues.serve()] == ["b", "a"]
    queues.waiting["A"] = deque([100])
    assert "A" in [queues.serve(), queues.serve()]


def test_a_party_of_small_groups_has_as_many_tokens_as_one_of_large_ones() -> None:
    queues = Queues({"large": [1_000] * 100, "small": [10] * 10_000, "uneven": [700] * 200})
    tokens: Counter[str] = Counter()
    while sum(tokens.values()) < 200_000:
        queues.serve()
        party, cost = queues.served[-1]
        tokens[party] += cost
    assert max(tokens.values()) - min(tokens.values()) <= 3 * 1_000


@given(PARTIES)
def test_every_group_is_served_once_and_each_party_s_in_the_order_of_receipt(costs: dict[str, list[int]]) -> None:
    queues = Queues(costs)
    assert sum(1 for _ in queues.all()) == sum(map(len, costs.values()))
    for party, wanted in costs.items():
        assert [cost for name, cost in queues.served if name == party] == wanted


@given(PARTIES, COSTS.filter(len), st.integers(0, 60))
def test_no_party_waits_for_more_than_one_service_of_each_other_party(
    costs: dict[str, list[int]], late: list[int], before: int
) -> None:
    """A party is served at most twice the most expensive group per round (rule 3), also in the round it arrives in."""
    queues = Queues(costs)
    for _ in range(before):
        queues.serve()
    queues.waiting["dd"] = deque(late)
    begun = len(queues.served)
    while queues.serve() != "dd":
        pass
    passed: Counter[str] = Counter()
    for party, cost in queues.served[begun:-1]:
        passed[party] += cost
    dearest = max(max(map(max, filter(None, costs.values())), default=0), *late)
    assert all(tokens <= 2 * dearest for tokens in passed.values())
    turns = [party for party, _ in itertools.groupby(party for party, _ in queues.served[begun:-1])]
    assert len(turns) == len(set(turns))


@given(PARTIES, st.integers(1, 200))
def test_parties_that_wait_all_the_time_get_the_same_up_to_two_groups(costs: dict[str, list[int]], steps: int) -> None:
    busy = {party: given * 200 for party, given in costs.items() if given}
    queues, tokens, dearest = Queues(busy), Counter(dict.fromkeys(busy, 0)), max(map(max, busy.values()), default=0)
    for _ in range(min(steps, sum(map(len, busy.values())))):
        queues.serve()
        party, cost = queues.served[-1]
        tokens[party] += cost
        if not queues.waiting[party]:
            break
        assert max(tokens.values()) - min(tokens.values()) <= 3 * dearest
