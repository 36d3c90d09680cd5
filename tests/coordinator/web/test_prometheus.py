"""The metrics of a run, parsed by the Prometheus client."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from echo2.coordinator.metrics.views import NodeRow
from echo2.coordinator.web import prometheus
from echo2.coordinator.web.site import application
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.site_visits import Visit, fetched


async def test_the_metrics_parse_and_match_the_state(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    _, headers, body = await fetched(session, "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert all(name.startswith("echo2_") for name in families)

    def value(name: str, /, **labels: str) -> float:
        samples = [s for family in families.values() for s in family.samples if s.name == name and s.labels == labels]
        assert len(samples) == 1, name
        return samples[0].value

    assert value("echo2_step") == 26
    assert value("echo2_learner_idle_ratio") == 0.034
    assert value("echo2_groups_refused_total", reason="late") == 3
    assert value("echo2_heldout_accuracy", sampling="sampled") == pictures.BUSY.evaluations[-1].sampled
    assert value("echo2_broadcast_seconds", quantile="0.95") == pictures.BUSY.broadcast.p95
    assert value("echo2_broadcast_acknowledgements") == 3
    (generated,) = [part for part in pictures.STAGES.parts if part.name == "generated"]
    assert value("echo2_group_stage_seconds", stage="generated") == generated.seconds
    assert value("echo2_group_stage_steps", stage="generated") == generated.steps
    assert value("echo2_group_stage_mean_steps", stage="generated") == generated.mean_steps
    assert pictures.STAGES.whole is not None
    assert value("echo2_group_stage_steps", stage="whole") == pictures.STAGES.whole.steps
    (largest,) = families["echo2_group_stage_largest_seconds"].samples
    assert largest.labels == {"stage": pictures.STAGES.largest}
    assert largest.value == max(part.mean_seconds for part in pictures.STAGES.parts)
    assert value("echo2_staleness_steps_bucket", le="2.0") == 31 + 188 + 142
    assert value("echo2_staleness_steps_count") == sum(pictures.BUSY.staleness)
    assert value("echo2_node_groups_accepted_total", node=pictures.NODES[0].id) == 243


async def test_the_learners_metrics_have_their_age_as_a_label(visit: Visit) -> None:
    last = msgspec.structs.replace(pictures.BUSY.steps[-1], metrics={"ess": 0.9, "ess_age_0": 1.0, "ess_age_2": 0.7})
    session = await visit(application(FixedRun(msgspec.structs.replace(pictures.BUSY, steps=[last]))))
    _, _, body = await fetched(session, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    samples = {(one.labels["metric"], one.labels["age"]): one.value for one in families["echo2_learner_metric"].samples}
    assert samples == {("ess", ""): 0.9, ("ess", "0"): 1.0, ("ess", "2"): 0.7}


async def test_unmeasured_metrics_have_no_sample(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.EMPTY)))
    _, _, body = await fetched(session, "/metrics")
    samples = {sample.name for family in text_string_to_metric_families(body.decode()) for sample in family.samples}
    assert "echo2_step" in samples
    assert not samples & {"echo2_learner_idle_ratio", "echo2_reward", "echo2_capacity_need", "echo2_broadcast_seconds"}
    assert not samples & {"echo2_group_stage_steps", "echo2_group_stage_seconds", "echo2_group_stage_largest_seconds"}


def test_neither_names_nor_keys_without_accepted_work_make_time_series() -> None:
    named, idle = pictures.NODES[0], msgspec.structs.replace(pictures.NODES[1], accepted=0)

    def series(*nodes: NodeRow) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        state = msgspec.structs.replace(pictures.BUSY, nodes=list(nodes))
        families = text_string_to_metric_families(prometheus.exposition(state).decode())
        samples = [one for family in families for one in family.samples]
        return {(one.name, frozenset(one.labels.items())) for one in samples}

    before = series(named)
    assert any(("node", named.id) in labels for _, labels in before)
    assert series(msgspec.structs.replace(named, name="another"), idle) == before
