"""The leaderboard as CSV."""

import csv
import io

import pytest

from echo2.coordinator.web import csv_export
from echo2.coordinator.web.site import application
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.site_visits import Visit, fetched


async def test_the_leaderboard_is_served_as_csv(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    _, headers, body = await fetched(session, "/api/v1/nodes.csv")
    assert headers["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
    assert [row["id"] for row in rows] == [node.id for node in pictures.NODES]
    assert (rows[1]["name"], rows[1]["refused"], rows[1]["connected"]) == ("Känguru im Keller", "3", "1")
    assert (rows[3]["name"], rows[3]["connected"], rows[4]["version"]) == ("", "0", "")


@pytest.mark.parametrize(
    "name", ['=HYPERLINK("http://x")', "+1", "-1", "@a", "\t=1", "\r=1", " =1", "\xa0=1", "\uff1d1", "\n1", "|a"]
)
def test_a_name_is_no_formula_in_a_spreadsheet(name: str) -> None:
    _, row = csv.reader(io.StringIO(csv_export.of_nodes([pictures.node(1, name=name)]), newline=""))
    assert row[1] == f"'{name}"


def test_a_name_with_commas_quotes_and_lines_stays_one_cell() -> None:
    name = 'a, "b"\nc'
    _, row = csv.reader(io.StringIO(csv_export.of_nodes([pictures.node(1, name=name)]), newline=""))
    assert row[1] == name
    assert len(row) == len(csv_export.COLUMNS)
