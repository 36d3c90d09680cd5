"""The cheapest chain of edges."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from echo2.weights.documents import Edge
from echo2.weights.update_path import path_to


def root(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def edge(base: str | None, to: str, length: int, *, mark: bytes = b"p") -> Edge:
    return Edge(
        era=1,
        base=None if base is None else 0,
        base_root=None if base is None else root(base),
        version=1,
        root=root(to),
        codec="gaps-zstd/1",
        payload_hash=mark.ljust(32, b"."),
        length=length,
        chunk_size=1024,
        chunk_root=bytes(32),
    )


CHAIN = [edge("v0", "v1", 10), edge("v1", "v2", 10), edge("v2", "v3", 10), edge("v3", "v4", 10)]
SKIP = edge("v0", "v4", 25)
FULL = edge(None, "v4", 1000)


def test_a_version_at_hand_needs_no_edge() -> None:
    assert path_to(CHAIN, {root("v4")}, root("v4")) == []


def test_the_chain_is_taken_where_it_is_cheaper() -> None:
    assert path_to([*CHAIN, SKIP, FULL], {root("v2")}, root("v4")) == CHAIN[2:]


def test_the_skip_is_taken_where_the_chain_is_dearer() -> None:
    assert path_to([*CHAIN, SKIP, FULL], {root("v0")}, root("v4")) == [SKIP]


def test_without_any_version_the_full_snapshot_is_taken() -> None:
    assert path_to([*CHAIN, SKIP, FULL], set(), root("v4")) == [FULL]


def test_a_full_anchor_and_a_diff_beat_a_dear_full_snapshot() -> None:
    anchor = edge(None, "v3", 500)
    assert path_to([*CHAIN, FULL, anchor], set(), root("v4")) == [anchor, CHAIN[3]]


def test_the_nearest_of_several_held_is_the_start() -> None:
    assert path_to([*CHAIN, SKIP], {root("v0"), root("v3")}, root("v4")) == [CHAIN[3]]


def test_a_head_that_no_edge_reaches_has_no_path() -> None:
    assert path_to(CHAIN[:2], {root("v0")}, root("v4")) is None
    assert path_to(CHAIN, set(), root("v4")) is None


def test_circles_end() -> None:
    assert path_to([edge("a", "b", 1), edge("b", "a", 1)], {root("a")}, root("z")) is None


def test_among_equals_the_order_of_the_input_does_not_show() -> None:
    one, two = edge("a", "b", 5, mark=b"1"), edge("a", "b", 5, mark=b"2")
    assert path_to([two, one], {root("a")}, root("b")) == path_to([one, two], {root("a")}, root("b")) == [one]
    both = [edge("a", "m", 2), edge("m", "b", 3)]
    assert path_to([*both, two], {root("a")}, root("b")) == [two]


def test_of_two_versions_with_the_same_weights_the_newer_is_reached() -> None:
    older, newer = edge("a", "b", 5), msgspec.structs.replace(edge("a", "b", 5), version=2)
    assert path_to([older, newer], {root("a")}, root("b")) == path_to([newer, older], {root("a")}, root("b")) == [newer]
    assert path_to([older, older], {root("a")}, root("b")) == [older]


GRAPHS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 50)), max_size=25)


@given(GRAPHS)
def test_no_other_chain_is_cheaper(graph: list[tuple[int, int, int]]) -> None:
    edges = [edge(f"v{a}", f"v{b}", length) for a, b, length in graph]
    best = {root("v0"): 0}
    for _ in range(7):  # Bellman-Ford
        for item in edges:
            if item.base_root in best:
                cost = best[item.base_root] + item.length
                best[item.root] = min(best.get(item.root, cost), cost)
    path = path_to(edges, {root("v0")}, root("v6"))
    assert (None if path is None else sum(item.length for item in path)) == best.get(root("v6"))
    for before, after in zip(path or [], (path or [])[1:], strict=False):
        assert before.root == after.base_root
