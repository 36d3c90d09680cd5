"""Scorers of Ray without a cluster: settings, a missing Ray, and calls to an actor of another life."""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.ray_scorers.cluster_check import check_cluster, driver_environment
from echo2.coordinator.ray_scorers.fetched_folder import FetchedFolder, PayloadAway
from echo2.coordinator.ray_scorers.messages import ActorReply, FetchAllCall, OpenOrder, PayloadSource
from echo2.coordinator.ray_scorers.ray_actor import RAYLET_VARIABLE, ScorerActor
from echo2.coordinator.ray_scorers.ray_driver import RayAway, own_cluster
from echo2.coordinator.run import key_checks
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.settings.config import parse
from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault
from tests.support.children import child
from tests.support.paths import ROOT

TWO = ScorerSection(ray="auto", devices=("cuda", "cuda"))


@pytest.mark.parametrize(
    ("ray", "devices", "sentence"),
    [
        ("auto", None, r'ray needs a device for each scorer: set scorer\.devices = \["cuda", "cuda"\]'),
        ("auto", '["cuda:1"]', "names cuda:1, but Ray chooses the card: name it without its number"),
        ("auto", '["auto"]', "names auto among others"),
        ("ray://10.0.0.1:10001", '["cuda"]', r"scorer\.ray"),
        ("10.0.0.1", '["cuda"]', r"scorer\.ray"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_a_sentence(ray: str, devices: str | None, sentence: str) -> None:
    env = {"ECHO2_COORD_SCORER_RAY": ray} | ({} if devices is None else {"ECHO2_COORD_SCORER_DEVICES": devices})
    with pytest.raises(SettingsFault, match=sentence) as refused:
        parse({}, source="x", env=env)
    assert "\n" not in str(refused.value)


def test_scorers_of_ray_need_https() -> None:
    env = {"ECHO2_COORD_SCORER_RAY": "10.0.0.1:6379", "ECHO2_COORD_SCORER_DEVICES": '["cpu"]'}
    with pytest.raises(SettingsFault, match=r"scorer\.ray needs https\.listen"):
        parse({"https": {"listen": []}}, source="x", env=env)


def test_ray_chooses_the_card_of_each_scorer_and_none_is_on_this_machine() -> None:
    computing = computing_of(LearnerSection(device="cpu"), TWO)
    assert (computing.scorers, computing.by_ray) == ((), ("cuda", "cuda"))
    assert "2 scorers on cuda, cuda, where Ray places them" in computing.sentence()
    assert (TWO.number, TWO.own_number) == (2, 1)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
def test_a_run_with_scorers_of_ray_is_refused_where_ray_is_not_installed() -> None:
    with pytest.raises(LocalFault, match=r"needs Ray, which this installation of echo2 lacks: .*ray"):
        check_cluster(TWO)
    assert check_cluster(ScorerSection()) == ""


def test_the_doctor_names_a_cluster_that_does_not_fit_and_is_silent_without_one() -> None:
    assert key_checks.ray_cluster(ScorerSection()) == []
    (check,) = key_checks.ray_cluster(ScorerSection(ray="127.0.0.1:1", devices=("cpu",)))
    assert "scorer.ray" in check.actual
    assert check.remedy == "until then the run does not start"


def test_the_driver_gets_what_ray_needs_of_the_environment_and_no_secret() -> None:
    environ = {"HOME": "/home/op", "RAY_AUTH_TOKEN": "t", "ECHO2_COORD_PASSPHRASE": "secret", "AWS_SECRET": "x"}
    assert driver_environment(environ, {"A": "b"}) == {"HOME": "/home/op", "RAY_AUTH_TOKEN": "t", "A": "b"}


def test_a_host_without_a_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert own_cluster() == "10.0.0.1:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    if not Path(tempfile.gettempdir(), "ray", "ray_current_cluster").exists():
        with pytest.raises(RayAway, match="no cluster of Ray runs on this host"):
            own_cluster()


async def test_a_call_to_the_engine_of_another_life_is_refused_by_the_actor() -> None:
    actor = ScorerActor()
    for answer in (await actor.call(7, "score", b"\xc0"), await actor.notices(7)):
        assert msgspec.msgpack.decode(answer, type=ActorReply).ended == "its host has another engine"


ACTOR = "import sys; from echo2.coordinator.ray_scorers.ray_actor import ScorerActor; ScorerActor(); sys.stdin.read()"


@pytest.mark.parametrize(("raylet_lives", "status"), [(True, 0), (False, 1)])
@pytest.mark.slow_but("False-1")
def test_an_actor_whose_raylet_died_before_its_engine_was_opened_ends(raylet_lives: bool, status: int) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), RAYLET_VARIABLE: str(os.getpid() if raylet_lives else 1 << 22)}
    with child([sys.executable, "-c", ACTOR], env=env, stdin=subprocess.PIPE) as actor:
        if raylet_lives:
            actor.communicate(timeout=60)  # closes its standard input
        assert actor.wait(60) == status


async def test_weights_are_not_there_before_they_are_fetched_and_an_away_coordinator_is_named(tmp_path: Path) -> None:
    folder = FetchedFolder(tmp_path / "1", lambda: None)
    source = PayloadSource(["/ip4/127.0.0.1/tcp/1/https"], bytes(32))
    call = FetchAllCall(source=source, model=[])
    assert not await folder.prepare(call.source, call.model, call.chain)
    with pytest.raises(PayloadAway, match="another scorer of this host uses"):
        FetchedFolder(tmp_path / "1", lambda: None)


def test_an_order_keeps_its_bytes() -> None:
    order = OpenOrder("ab", 2, "cuda", 9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=OpenOrder) == order
