"""Refused connections on the page, in `status` and in the metrics."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import LinksView
from echo2.coordinator.web import page, prometheus
from tests.support import pictures

FULL = msgspec.structs.replace(
    pictures.BUSY, links=LinksView(open=1024, refused={"connections": 1234, "https": 5}, shortages=7)
)


def test_refused_connections_are_on_the_page_in_status_and_in_the_metrics() -> None:
    html = page.page(FULL)
    assert "1,234: the limit on all connections was reached (network.connections)" in html
    assert "5: the limit on all HTTPS connections was reached (https.connections)" in html
    assert "7 times no descriptor was free" in html
    told = "1024 connections open; refused for a limit: 1234 connections, 5 https"
    assert any(told in text_line for text_line in status.lines(FULL))
    families = {family.name: family for family in text_string_to_metric_families(prometheus.exposition(FULL).decode())}
    assert {one.labels["limit"]: one.value for one in families["echo2_connections_refused"].samples} == {
        "connections": 1234,
        "https": 5,
    }
    assert families["echo2_connections"].samples[0].value == 1024
    assert families["echo2_descriptor_shortages"].samples[0].value == 7


def test_without_refusals_the_page_has_no_section_on_them() -> None:
    assert "Connections refused" not in page.page(pictures.BUSY)


def test_hidden_strangers_are_on_the_page_and_in_status() -> None:
    hidden = "all 9 connections came from private addresses: why; what to do"
    state = msgspec.structs.replace(pictures.BUSY, links=LinksView(open=9, hidden=hidden))
    assert hidden in page.page(state)
    assert f"links    {hidden}" in status.lines(state)
