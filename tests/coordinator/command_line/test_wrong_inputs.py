"""Wrong inputs that an operator would make: one sentence, the right exit code, and nothing is made or changed."""

import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.settings import computing
from echo2.runtime.exit_codes import Exit
from tests.support import pictures
from tests.support.run_folders import NOW

LEASE = "0" * 32
WRONG: dict[str, tuple[str, int, str]] = {
    # config
    "config get: a key that does not exist": ("config get run.stepz --home {run}", 78, "did you mean run.steps?"),
    "config get: a folder that is no run": ("config get --home {none}", 78, "no run in"),
    "config diff: a folder that is no run": ("config diff --home {none}", 78, "no run in"),
    "config set: no value": ("config set run.steps --home {run}", 78, "run.steps"),
    "config set: an unknown section": ("config set rnu.steps=4 --home {run}", 78, "rnu"),
    "config set: a wrong type": ("config set run.steps=many --home {run}", 78, "run.steps should be a whole number"),
    "config set: out of bounds": ("config set run.steps=0 --home {run}", 78, "run.steps should be"),
    "config set: what is signed": ("config set run.limit=9 --home {run}", 78, "run.limit is signed, and binds nodes"),
    "config set: one key twice": ("config set run.steps=4 run.steps=5 --home {run}", 78, "named 2 times"),
    "config set: one of two is wrong": ("config set run.steps=4 web.port=x --home {run}", 78, "web.port should be"),
    "config set: a device that is not here": ("config set learner.device=cuda:7 --home {run}", 78, "cannot use"),
    "config set: a scorer's device that is not here": (
        "config set scorer.devices=[\"cuda:7\"] --home {run}", 78, "scorer.devices is cuda:7, which this machine",
    ),
    "config set: one card for two scorers": (
        "config set scorer.devices=[\"cuda\",\"cuda:0\"] --home {run}", 78, "scorer.devices: names cuda:0 twice",
    ),
    "config set: an address for the operator that others reach": (
        "config set web.operator_listen=0.0.0.0:9 --home {run}", 78, "which others can reach",
    ),
    "config set: a folder that is no run": ("config set run.steps=4 --home {none}", 78, "no run in"),
    "config unset: a key that does not exist": ("config unset run.stepz --home {run}", 78, "did you mean run.steps?"),
    "config unset: what is signed": ("config unset run.limit --home {run}", 78, "is signed"),
    "config unset: a value where a key is wanted": ("config unset run.steps=4 --home {run}", 78, "run.steps"),
    "config set: nothing": ("config set --home {run}", 2, "Missing argument"),
    # run
    "run: a misspelt device": ("run --home {run} --set learner.device=gpu", 78, "learner.device: 'gpu' is no device"),
    "run: a device that is not here": (
        "run --home {run} --set learner.device=cuda", 78,
        "learner.device is cuda, which this machine cannot use (no cuda): set auto",
    ),
    "run: a scorer's device that is not here": (
        "run --home {run} --set scorer.devices=[\"cuda:7\"]", 78, "scorer.devices is cuda:7, which this machine",
    ),
    "run: one card for two scorers": (
        "run --home {run} --set scorer.devices=[\"cuda:1\",\"cuda:1\"]", 78, "scorer.devices: names cuda:1 twice",
    ),
    "run: scorers of a Ray that is not there": (
        "run --home {run} --set scorer.ray=127.0.0.1:1 --set scorer.devices=[\"cpu\"]", 78, "scorer.ray ",
    ),
    # finish and other commands to a running coordinator
    "finish: a folder without a name": ("finish --home=", 2, "the name of the folder is empty"),
    "finish: no coordinator runs": ("finish --home {run}", 69, "no coordinator runs in"),
    "finish: a folder that is no run": ("finish --home {none}", 69, "no coordinator runs in"),
    "pause: no coordinator runs": ("pause --home {run}", 69, "no coordinator runs in"),
    "page: no coordinator runs": ("page --home {run}", 69, "no coordinator runs in"),
    "status: no coordinator runs": ("status --home {run}", 69, "no coordinator"),
    "status: an address without its scheme": ("status --url 127.0.0.1:8420", 69, "is no coordinator's page"),
    # report
    "report: before the first start": ("report {new}.html --home {run}", 78, "none has ended in order there"),
    "report: a file that is there": ("report {file} --home {ended}", 78, "exists: name another file"),
    "report: a folder that is not there": ("report {none}/a.html --home {ended}", 78, "name another file"),
    "report: a folder as the file": ("report {folder} --home {ended}", 78, "exists: name another file"),
    "report: a folder that is no run": ("report {new} --home {none}", 78, "no run in"),
    "report: no file": ("report --home {run}", 2, "Missing argument"),
    # track
    "track: no history yet": ("track replay {new} --home {run}", 78, "has no history yet: start the run"),
    "track: a folder that is no run": ("track replay {new} --home {none}", 78, "no run in"),
    "track: a tracker that does not exist": ("track replay {new} --to mlflow --home {run}", 2, "'mlflow' is not one"),
    "track: no folder": ("track follow --home {run}", 2, "Missing argument"),
    "track: a file as the folder": ("track replay {file} --home {ended}", 78, "{file} is a file: name a folder"),
    # rollouts
    "rollouts ls: two orders": ("rollouts ls --best --worst --home {run}", 78, "two orders: choose one"),
    "rollouts ls: a version below 0": ("rollouts ls --version -1 --home {run}", 2, "--version"),
    "rollouts ls: no number": ("rollouts ls --most few --home {run}", 2, "--most"),
    "rollouts ls: a node that is none": ("rollouts ls --node bob --home {run}", 78, "bob"),
    "rollouts ls: a folder that is no run": ("rollouts ls --home {none}", 78, "{none}"),
    "rollouts show: a lease that is none": ("rollouts show xyz --home {run}", 78, "xyz"),
    "rollouts show: a lease that is not stored": (f"rollouts show {LEASE} --home {{run}}", 78, "are not stored"),
    # doctor
    "doctor: a folder that is no run": ("doctor --home {none}", 78, "no run in"),
    "doctor: a file": ("doctor --home {file}", 78, "{file}"),
    # relay
    "relay: a host with a port": ("relay --home {new} --host relay.example.org:4101", 78, "--host should be"),
    "relay: a host with its scheme": ("relay --home {new} --host https://relay.example.org", 78, "--host should be"),
    "relay: a port too high": ("relay --home {new} --port 70000", 2, "--port"),
    "relay: a rate of 0": ("relay --home {new} --rate 0", 2, "--rate"),
    # backup and restore
    "backup: a file that is there": ("backup {file} --home {run}", 78, "is there already: name another file"),
    "backup: a file in the run folder": ("backup {run}/copy --home {run}", 78, "is inside the run folder"),
    "backup: a folder that is no run": ("backup {new} --home {none} PASS=", 78, "no run in"),
    "backup: a passphrase too short": ("backup {new} --home {run} PASS=short", 78, "passphrase"),
    "backup: no passphrase": ("backup {new} --home {run} PASS=", 78, "set ECHO2_BACKUP_PASSPHRASE"),
    "restore: a file that is not there": ("restore {none} --home {new}", 78, "{none}"),
    "restore: a file that is no backup": ("restore {file} --home {new}", 78, "{file}"),
    "restore: over a run": ("restore {file} --home {run}", 78, "{run}"),
    "restored: a run that was not restored": ("restored --yes --home {run}", 78, "{run}"),
    # page export
    "page export: before the first start": ("page export {new} --home {run}", 78, "none has ended in order there"),
    "page export: a folder with files": ("page export {full} --home {ended}", 78, "exists and is not empty"),
    "page export: a file": ("page export {file} --home {ended}", 78, "exists and is not empty"),
    "page export: a folder that is no run": ("page export {new} --home {none}", 78, "no run in"),
    # policy
    "policy ls: a folder that is no run": ("policy ls --home {none}", 78, "{none}"),
    "policy export: a folder that is there": ("policy export {folder} --home {run}", 78, "is there already"),
    "policy export: no version yet": ("policy export {new} --home {run}", 78, "has no store yet: `echo2-coord run`"),
    "policy export: a GGUF file that is no option": ("policy export {new} --ggfu --home {run}", 2, "--ggfu"),
    "policy verify: a folder that was not exported": ("policy verify {folder}", 78, "`echo2-coord policy export`"),
    "policy rollback: no coordinator runs": ("policy rollback 3 --home {run}", 69, "no coordinator runs in"),
    "policy rollback: a version below 0": ("policy rollback --home {run} -- -3", 2, "'version'"),
    # init, from a hub
    "init: a name of a hub without its organisation": ("init {new} --yes --model hf:qwen", 78, "write hf:ORG/NAME"),
    "init: a hub's name without hf:": ("init {new} --yes --model Qwen/Qwen3-4B", 78, "is named hf:Qwen/Qwen3-4B"),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(_made_once: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the places that the rows name, which no row changes. `ended`: a run whose coordinator ended in order."""
    folder = tmp_path_factory.mktemp("places")
    named = {name: folder / name for name in ("none", "new", "file", "folder", "full", "run", "ended")}
    shutil.copytree(_made_once, named["run"])
    with Database.open(RunFolder(named["run"]).database):
        pass
    shutil.copytree(named["run"], named["ended"])
    ended = RunFolder(named["ended"])
    ended.last_state.write_bytes(msgspec.json.encode(pictures.BUSY))
    ended.history.touch()
    named["folder"].mkdir()
    named["full"].mkdir()
    (named["full"] / "mine").write_text("mine")
    named["file"].write_text("mine")
    return {name: str(path) for name, path in named.items()}


def content(places: dict[str, str]) -> dict[str, bytes]:
    """Return all files, but those that SQLite makes beside a database that is read."""
    folder = Path(places["run"]).parent
    paths = [path for path in sorted(folder.rglob("*")) if not path.name.endswith(("-shm", "-wal"))]
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_input_is_one_sentence_and_makes_nothing(
    what: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, expected, sentence = WRONG[what]
    monkeypatch.setattr(command_options, "now", lambda: NOW)
    monkeypatch.setattr(computing, "device_by_torch", lambda name: ("", "", f"no {name}"))
    text, _, secret = text.partition(" PASS=")
    monkeypatch.setenv("ECHO2_BACKUP_PASSPHRASE", secret if "PASS=" in WRONG[what][0] else "correct horse battery")
    before = content(places)
    result = CliRunner().invoke(cli.app, [word.format(**places) for word in text.split()])
    said = result.stderr.splitlines()
    assert result.exit_code == expected, result.stderr
    assert result.stdout == ""
    if expected == Exit.USAGE:
        assert said[-1].startswith("Error: ")
    else:
        assert len(said) == 1
        assert said[0].startswith("echo2-coord: ")
        assert "internal fault" not in said[0]
    assert sentence.format(**places) in said[-1]
    assert content(places) == before


def test_the_table_has_sixty_rows() -> None:
    assert len(WRONG) >= 60
