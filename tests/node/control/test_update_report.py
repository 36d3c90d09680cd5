"""`echo2-node update`: what installed this build, the command that updates it, and what the run asks for."""

import sys
from pathlib import Path

import msgspec
import pytest

from echo2.engines.vllm import own_environment
from echo2.node import newer_build
from echo2.node.config import load_config
from echo2.node.control import update_report
from echo2.node.home import run_folder
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RunSpec, TaskReference
from echo2.protocol.requests import Refusal
from echo2.runtime.installation import Installation, InstallSource, RunsUninstalled

INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/memory/0/p2p/QmA"])
WHEEL = Installation("uv tool", InstallSource("file", "/w/echo2-0.1.0-py3-none-any.whl"), "/e/bin/python", ("torch",))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(update_report, "read_installation", lambda: WHEEL)
    return tmp_path


def of_run(home: Path) -> str:
    return update_report.lines(home)[-1]


def join(home: Path, *protocols: int) -> Path:
    """Join a run in `home`; return its folder. `protocols`: those of its RunSpec, which is stored if they are given."""
    (home / "invite").write_text(INVITE.to_text())
    folder = run_folder(home, INVITE.run)
    (folder / "trust").mkdir(parents=True, exist_ok=True)
    if protocols:
        spec = RunSpec(
            run=INVITE.run, name="sums", model="m", assets=[], eos=1, vocabulary=16,
            tasks=[TaskReference(name="reverse", version=1)], staleness=4, group_size=2, limit=8, sampling="g",
            compute_dtype="float32", engines=["x"], price_mode="points", protocols=(protocols[0], protocols[1]),
        )  # fmt: skip
        (folder / "trust" / "runspec").write_bytes(seal("runspec", INVITE.run, encode(spec), generate_key()))
    return folder


def test_the_command_and_each_place_in_it_are_explained(home: Path) -> None:
    build, installed, update, place, run = update_report.lines(home)
    assert build.startswith("this build   echo2 ")
    source = "from the file /w/echo2-0.1.0-py3-none-any.whl"
    assert installed == f"installed    by uv tool, environment of /e/bin/python, {source}"
    assert update == "update       uv tool install --force --upgrade 'NEWER_WHEEL[torch]'"
    assert "a newer wheel" in place
    assert run == f"the run      none was joined in {home}"


def test_the_protocols_of_the_run_are_compared_with_those_of_this_build(home: Path) -> None:
    join(home)
    assert of_run(home).endswith(
        "has not answered yet: a node that runs asks it (`echo2-node status` shows whether one does)"
    )
    join(home, 1, 1)
    assert of_run(home).endswith("sums speaks protocol 1, and so does this build: no update is needed for it")
    join(home, 8, 9)
    assert of_run(home).endswith("sums speaks protocol 8 to 9, this build protocol 1 to 3: update")


@pytest.mark.parametrize(("code", "asks"), [("protocol", True), ("task-version", True), ("banned", False)])
def test_a_run_that_refused_this_build_as_too_old_asks_for_a_newer_one(home: Path, code: str, asks: bool) -> None:
    newer_build.record(join(home, 1, 1), Refusal(code=code, sentence="Update echo2 to protocol 9."))
    assert ("asks for a newer build: Update echo2 to protocol 9." in of_run(home)) is asks


def test_a_damaged_runspec_is_as_one_that_never_came(home: Path) -> None:
    (join(home) / "trust" / "runspec").write_bytes(b"\xc1")
    assert "has not answered yet" in of_run(home)


def test_a_checkout_that_nothing_installed_is_told_how(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Installation:
        raise RunsUninstalled("echo2 runs from /src and is not installed")

    monkeypatch.setattr(update_report, "read_installation", missing)
    assert update_report.lines(home)[1] == "echo2 runs from /src and is not installed"


def test_an_update_names_the_environment_of_vllm_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own_environment.FOLDER_VARIABLE, str(home))
    assert not any("vllm" in one for one in update_report.lines(home))
    python = own_environment.python_of(own_environment.folder())
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    for echo2, used in ((own_environment.own_build(), True), ("0.0.1", False)):
        mark = own_environment.Mark(echo2=echo2, vllm="vllm 0.32.0")
        (own_environment.folder() / own_environment.MARK).write_bytes(msgspec.json.encode(mark))
        text = "\n".join(update_report.lines(home))
        assert f"vllm 0.32.0, in {own_environment.folder()}" in text
        assert "echo2-node engine install vllm" in text
        assert ("of another echo2, so it is not used" in text) is not used


def test_the_variable_of_its_folder_is_no_unknown_setting(home: Path) -> None:
    load_config({}, {own_environment.FOLDER_VARIABLE: str(home), "ECHO2_CONFIG": str(home / "none.toml")})
