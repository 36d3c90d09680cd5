"""Teams on the page and in the API: members, work and the score of seven days."""

import gzip
import json

import msgspec

from echo2.coordinator.metrics.views import TeamRow
from echo2.coordinator.web import page
from echo2.coordinator.web.site import BODIES
from echo2.coordinator.web.team_rows import MOST_TEAMS
from tests.support import pictures
from tests.support.site_visits import Drawn


def words(html: str) -> str:
    return " ".join(Drawn(html).words.split())


def test_the_page_lists_teams_with_members_work_and_score_and_says_what_they_are() -> None:
    text = words(page.page(pictures.PAID))
    assert "1Foxes of <the> north124,2109.12 k3.5 k" in text
    assert "Work counts for the team that its volunteer is in when it is accepted, and stays there." in text
    assert "nobody owns one" in text


def test_a_team_whose_name_was_blotted_out_is_shown_by_its_commitment() -> None:
    html = page.page(pictures.PAID)
    assert "cd" * 32 in html
    assert "2cdcd…cdcdcd031610.9" in words(html)


def test_a_run_without_teams_shows_none() -> None:
    assert "Teams" not in words(page.page(pictures.BUSY))


def test_the_api_lists_teams() -> None:
    kind, render = BODIES["/api/v1/teams"]
    assert kind == "application/json"
    assert json.loads(render(pictures.PAID))[0]["name"] == "Foxes of <the> north"
    assert msgspec.json.decode(render(pictures.BUSY)) == []


def test_a_page_with_as_many_teams_as_there_can_be_stays_light() -> None:
    rows = [
        TeamRow(
            id=f"{number:064x}", name=f"{number} " + "\u00e4" * 37, members=10**6, groups=10**9, weight=10**12, score=1
        )
        for number in range(MOST_TEAMS)
    ]
    html = page.page(msgspec.structs.replace(pictures.PAID, teams=rows))
    assert html.count("\u00e4" * 37) == 20
    assert len(gzip.compress(html.encode(), 6)) < 150_000
