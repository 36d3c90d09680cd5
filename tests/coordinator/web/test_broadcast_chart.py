"""Layout of the broadcast chart, with three nodes and with many."""

import itertools
import re
import xml.etree.ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.metrics.broadcast_stats import MOST_TAKES
from echo2.coordinator.metrics.views import BroadcastView, DeliveryView, TransferView
from echo2.coordinator.web import page
from echo2.coordinator.web.broadcast_chart import ARCS, COLOURS, MOST_FLOWS, OTHERS, SOURCE, Spread, layout
from tests.support import pictures

SVG = "{http://www.w3.org/2000/svg}"


def take(node: str, complete: float, *feeds: tuple[str, int], applied: float | None = None) -> DeliveryView:
    return DeliveryView(
        node=node, heard=0.1, complete=complete, applied=complete if applied is None else applied, counted=True,
        feeds=[TransferView(peer=peer, nbytes=nbytes, began=0.1, ended=complete) for peer, nbytes in feeds],
    )  # fmt: skip


def drawn(*takes: DeliveryView, **names: str) -> Spread:
    spread = layout(BroadcastView(source="C", version=7, takes=list(takes)), names)
    assert spread is not None
    return spread


def svg(state: object) -> ET.Element:
    """Return the chart on the page, parsed as XML."""
    (text,) = re.findall(r'<svg class="spread".*?</svg>', page.page(state), re.DOTALL)  # type: ignore[arg-type]
    return ET.fromstring(text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def test_there_is_no_chart_before_the_first_acknowledgement() -> None:
    assert layout(BroadcastView(source="C"), {}) is None


def test_a_bar_is_divided_by_bytes_from_the_first_request_to_complete() -> None:
    spread = drawn(take("a", 1.0, ("C", 300), ("b", 100)), take("b", 2.0, ("C", 400)))
    first, second = spread.rows
    assert [(part.style, part.hint) for part in first.segments] == [
        (SOURCE, "300 B from coordinator, 75 %"),
        (COLOURS[0], "100 B from b, 25 %"),
    ]
    wide, narrow = (part.width for part in first.segments)
    assert wide / narrow == pytest.approx(3, rel=0.01)
    assert first.segments[0].left == pytest.approx(first.wait[1])
    assert first.segments[-1].left + narrow == pytest.approx(first.end, abs=0.05)
    assert first.end / second.end == pytest.approx(0.5, rel=0.01)
    assert spread.passed == pytest.approx(1 / 8)  # the mean of a quarter and nothing


def test_an_arrow_goes_from_the_sender_to_the_receiver_and_its_width_is_by_bytes() -> None:
    spread = drawn(take("a", 1.0, ("C", 400)), take("b", 2.0, ("a", 200), ("C", 200)), a="alice", b="bob")
    flows = {flow.hint.partition(",")[0]: flow for flow in spread.flows}
    assert set(flows) == {"coordinator sent alice 400 B", "alice sent bob 200 B", "coordinator sent bob 200 B"}
    widths = [flows[hint].width for hint in ("coordinator sent alice 400 B", "alice sent bob 200 B")]
    assert widths[0] == 2 * widths[1]
    alice, bob = spread.rows
    fed = flows["alice sent bob 200 B"]
    assert fed.path.startswith(f"M0 {alice.y:g}C")
    assert fed.path.endswith(f" {bob.y:g}")
    assert fed.arrow.startswith(f"M0 {bob.y:g}l")
    assert fed.style == alice.style == COLOURS[0]


def test_a_sender_that_is_not_drawn_has_no_arrow_and_is_named_by_its_id() -> None:
    spread = drawn(take("a", 1.0, ("12D3KooWsomebodyelse", 400)))
    assert spread.flows == ()
    assert "12D3…dyelse" in spread.rows[0].segments[0].hint


def test_small_senders_are_drawn_together() -> None:
    spread = drawn(take("a", 1.0, ("C", 900), *[(f"p{i}", 10) for i in range(10)]))
    assert [part.hint for part in spread.rows[0].segments] == [
        "900 B from coordinator, 90 %",
        "100 B from 10 others, 10 %",
    ]
    assert spread.rows[0].segments[-1].style == OTHERS


def test_the_largest_senders_have_a_colour_each() -> None:
    takes = [take(f"n{i}", 1.0 + i, *[(f"n{j}", 100 * (j + 1)) for j in range(i)]) for i in range(9)]
    spread = drawn(*takes)
    assert [style for style, _ in spread.key] == [SOURCE, *COLOURS, OTHERS]
    assert spread.key[0][1] == "coordinator"
    colours = [row.style for row in spread.rows]
    assert len({style for style in colours if style != OTHERS}) == len(COLOURS)


def test_a_node_that_had_every_byte_already_has_a_bar_without_senders() -> None:
    (row,) = drawn(take("a", 0.5, applied=0.7)).rows
    assert row.segments == ()
    assert row.wait == (0, row.end)


def test_a_node_that_applies_late_does_not_squeeze_the_other_rows() -> None:
    spread = drawn(take("a", 1.0, ("C", 4)), take("b", 1.2, ("C", 4), applied=600.0))
    assert spread.rows[0].end > 75
    assert sum(spread.rows[1].load) <= 100


def test_a_node_that_claims_a_petabyte_distorts_only_its_own_row() -> None:
    honest = [take("a", 1.0, ("C", 400)), take("b", 2.0, ("a", 300), ("C", 100))]
    without, with_it = drawn(*honest), drawn(*honest, take("false", 3.0, ("b", 10**15)))
    assert [[part.hint for part in row.segments] for row in with_it.rows[:2]] == [
        [part.hint for part in row.segments] for row in without.rows
    ]
    assert with_it.rows[0].end == pytest.approx(2 / 3 * without.rows[0].end, abs=0.1)
    widths = {flow.hint.partition(",")[0]: flow.width for flow in with_it.flows}
    assert {hint: widths[hint] for hint in (flow.hint.partition(",")[0] for flow in without.flows)} == {
        flow.hint.partition(",")[0]: flow.width for flow in without.flows
    }


times = st.floats(0, 1e5, allow_nan=False)


@given(st.lists(st.tuples(times, times, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1 << 53))), times)))
@pytest.mark.slow
def test_every_mark_is_within_the_chart_for_any_figures_of_nodes(said: list[tuple[float, float, list, float]]) -> None:
    takes = [
        DeliveryView(
            node=f"n{number}", heard=began, complete=complete, applied=applied, counted=True,
            feeds=[TransferView(peer=f"n{peer}" if peer else "C", nbytes=nbytes, began=applied, ended=began)
                   for peer, nbytes in feeds],
        )
        for number, (began, complete, feeds, applied) in enumerate(said)
    ]  # fmt: skip
    spread = layout(BroadcastView(source="C", version=1, takes=takes), {})
    assert (spread is None) == (not takes)
    for row in spread.rows if spread else ():
        for left, width in (row.wait, row.load, *((part.left, part.width) for part in row.segments)):
            assert 0 <= left <= 100
            assert 0 <= width <= 100
        assert spread is not None
        assert 0 <= row.y <= spread.height


@pytest.mark.parametrize("count", [1, 3, 12, 13, MOST_TAKES])
def test_rows_do_not_touch_and_the_chart_is_an_image_with_a_title_and_a_text(count: int) -> None:
    nodes = [
        pictures.node(number, name=f"node {number} with a name of 40 letters".ljust(40, "m")) for number in range(count)
    ]
    view = pictures.broadcast([node.id for node in nodes])
    root = svg(msgspec.structs.replace(pictures.BUSY, nodes=nodes, broadcast=view))
    assert root.get("role") == "img"
    named = {element.get("id"): element for element in root.iter() if element.get("id")}
    assert [named[id_].tag for id_ in (root.get("aria-labelledby") or "").split()] == [f"{SVG}title", f"{SVG}desc"]
    assert (named["spread-text"].text or "").startswith(f"Version 26 reached {count} nodes")
    places = sorted(
        {float(text.get("y") or 0) for text in root.iter(f"{SVG}text") if "who" in (text.get("class") or "")}
    )
    assert len(places) == count + 1
    assert min(b - a for a, b in itertools.pairwise(places)) >= 16
    assert float(root.get("height") or 0) > places[-1]
    assert len(list(root.iter(f"{SVG}path"))) <= 2 * MOST_FLOWS
    assert not list(root.iter(f"{SVG}script"))


def test_arcs_stay_in_their_place() -> None:
    spread = layout(pictures.broadcast([f"n{number}" for number in range(MOST_TAKES)]), {})
    assert spread is not None
    for flow in spread.flows:
        handle = float(re.findall(r"C([\d.]+) ", flow.path)[0])
        assert 0 < 0.75 * handle <= ARCS
