"""The daemon's composition takes its limits and terms from the run's settings."""

from pathlib import Path

import pytest

from echo2.coordinator.command_line.serving import change_limits, connection_limits, scorers_of
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.coordinator.settings.computing import Computing
from echo2.coordinator.settings.config import CoordinatorConfig, parse
from echo2.coordinator.settings.network_config import HttpsSection
from echo2.coordinator.training.run_services import signing_of, terms_of
from echo2.p2p.identity import public_bytes
from tests.support.run_folders import NOW


@pytest.fixture
def run(home: Path) -> Run:
    return setup.load_run(home, env={}, now=NOW)


def test_enough_files_give_the_limits_of_the_settings() -> None:
    peers, https, web = connection_limits(CoordinatorConfig(), 1 << 20)
    assert (peers.connections, https.connections, web.connections) == (1024, 1024, 256)
    assert web.per_visitor == 32


def test_few_files_scale_all_limits_down() -> None:
    files = 1024
    peers, https, web = connection_limits(CoordinatorConfig(), files)
    assert 0 < web.connections < 256
    assert 0 < peers.connections < 1024
    assert peers.connections + https.connections + web.connections < files


def test_limits_of_connections_change_in_place() -> None:
    limits, web = connection_limits(CoordinatorConfig(), 1 << 20), {"connections": 300, "address_connections": 7}
    reach = {"connections": 2000, "subnet_connections": 9}
    change_limits(limits, parse({"network": reach, "web": web}, source="x"), 1 << 20)
    assert (limits[0].connections, limits[0].per_subnet) == (2000, 9)
    assert (limits[2].connections, limits[2].per_visitor) == (300, 7)
    assert limits[1].connections == 1024


def test_without_https_its_share_goes_to_the_others() -> None:
    settings = CoordinatorConfig(https=HttpsSection(listen=()))
    peers, https, _ = connection_limits(settings, 1024)
    assert https.connections == 0
    assert peers.connections > connection_limits(CoordinatorConfig(), 1024)[0].connections


def test_leases_have_the_terms_of_the_signed_run_and_the_settings(run: Run) -> None:
    terms = terms_of(run)
    assert (terms.staleness, terms.group_size, terms.limit) == (
        run.runspec.staleness, run.runspec.group_size, run.runspec.limit,
    )  # fmt: skip
    assert (terms.least_ms, terms.most_ms) == (30_000, 900_000)


def test_the_publisher_signs_with_the_keys_of_the_newest_root(run: Run) -> None:
    signing = signing_of(run)
    assert signing.policies == {public_bytes(run.keys.policy)}, "a first Root has no former keys"
    assert signing.roots == {run.root.serial: run.roots[-1]}


def test_the_scorers_compute_in_float32_each_on_its_device() -> None:
    scorers = scorers_of(Computing("cuda:0", 1, "", ("cuda:1", "cpu")), lambda fault: None, 600.0)
    assert [(one.dtype, one.device) for one in scorers] == [("float32", "cuda:1"), ("float32", "cpu")]
    assert [one.device for one in scorers_of(Computing("cuda:0", 1, ""), lambda fault: None, 600.0)] == ["cuda:0"]
