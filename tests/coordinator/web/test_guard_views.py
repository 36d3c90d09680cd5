"""A guarded run on the page, in `status` and in the metrics: why it is paused, what to type, what came again."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.trouble_views import GuardRow, GuardView, PauseView, RollbackView, TroubleView
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.web import page, prometheus
from tests.support import pictures

WHY = "held-out results have collapsed (reverse <b> solves 0.000)"
REMEDY = "`echo2-coord policy rollback` publishes version 10 again"
BACK = RollbackView(
    at=0, era=1, version=10, new_era=2, new_version=26, why=WHY, automatic=True, rate=0.25
)  # fmt: skip


def state_of(*, paused: bool = False, **guard: object) -> RunState:
    pause = PauseView(kind="held-out", why=WHY, since=0, until=None, remedy=REMEDY) if paused else None
    return msgspec.structs.replace(
        pictures.BUSY,
        phase="paused" if paused else "learning",
        trouble=TroubleView(paused=pause),
        guard=msgspec.structs.replace(GuardView(best_era=1, best_version=10), **guard),
    )


def rows(state: RunState, name: str) -> list[str]:
    return [row for row in status.lines(state) if row.startswith(name)]


def test_the_pause_says_why_and_what_to_type_everywhere() -> None:
    state = state_of(paused=True, left={"reverse": 0.02})
    html, metrics = page.page(state), prometheus.exposition(state)
    assert "reverse &lt;b&gt; solves 0.000" in html
    assert "No lease is granted and no step is made" in html
    assert "The operator decides: <code>echo2-coord policy rollback</code> publishes version 10 again." in html
    assert rows(state, "paused") == [f"paused   {WHY}; {REMEDY}"]
    assert rows(state, "guard") == ["guard    best version 10; reverse has 2 % of its best"]
    families = {family.name: family for family in text_string_to_metric_families(metrics.decode())}
    (told,) = families["echo2_pause_remedy"].samples
    assert told.labels == {"kind": "held-out", "why": WHY, "remedy": REMEDY}
    assert [one.value for one in families["echo2_guard_left"].samples] == [0.02]


def test_a_version_that_came_again_is_listed_with_its_rate() -> None:
    state = state_of(rollbacks=[BACK], rate=0.25)
    html = page.page(state)
    assert "Version 10 came again as version 26, without the operator, learning rate × 0.25" in html
    assert "The best version by held-out results is 10." in html
    assert rows(state, "rollback") == [f"rollback version 10 came again as version 26, learning rate x 0.25: {WHY}"]
    metrics = prometheus.exposition(state)
    assert b"echo2_learning_rate_factor 0.25" in metrics
    assert b"echo2_rollback_version 26.0" in metrics


def test_an_ordered_rollback_is_announced() -> None:
    state = state_of(ordered=10)
    assert "Version 10 is about to be published again." in page.page(state)
    assert rows(state, "rollback") == ["rollback version 10 is about to be published again"]


def test_each_way_to_die_has_a_row_and_a_warning_says_what_to_do() -> None:
    well = GuardRow(
        kind="drift", title="the policy runs away", now="0.01 from it", mood="ok", holds=0, pause_after=16, remedy="R0"
    )
    dying = GuardRow(
        kind="cut",
        title="answers are cut <b>",
        now="91 % cut",
        mood="warning",
        holds=3,
        pause_after=16,
        remedy="raise it",
    )
    warned = msgspec.structs.replace(dying, kind="floor", mood="warning", pause_after=None, remedy="R1")
    state = state_of(rows=[well, dying, warned])
    part = page.live(state).partition('id="guard"')[2].partition("</section>")[0]
    for shown in (
        "the policy runs away",
        "0.01 from it",
        "answers are cut &lt;b&gt;",
        "3 of 16 before a pause",
        "raise it",
    ):
        assert shown in part, shown
    assert "R0" not in part
    assert rows(state, "warning") == [
        "warning  answers are cut <b> (91 % cut), 3 of 16 before a pause: raise it",
        "warning  answers are cut <b> (91 % cut), 3: R1",
    ]
    assert b'echo2_guard_holds{kind="cut"} 3.0' in prometheus.exposition(state)


def test_a_run_that_never_broke_shows_nothing_of_it() -> None:
    html = page.page(pictures.BUSY)
    assert "published again" not in html
    assert not rows(pictures.BUSY, "guard") + rows(pictures.BUSY, "rollback")
    assert b"echo2_guard_left{" not in prometheus.exposition(pictures.BUSY)
