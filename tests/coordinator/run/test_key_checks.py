"""The coordinator's doctor: each protection that is not in force is named, with what to do."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import key_checks, keys_commands, setup
from echo2.coordinator.run.keys import PASSPHRASE_VARIABLE, keyless
from echo2.coordinator.run.signing import ROOT_LIFE
from echo2.coordinator.settings import computing
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.runtime.exit_codes import Exit
from tests.support.run_folders import NOW


def findings(home: Path, now: int = NOW) -> dict[str, key_checks.KeyCheck]:
    return {one.check: one for one in key_checks.examine(RunFolder(home), PayoutSection(), now)}


@pytest.mark.slow
def test_a_new_run_is_told_of_its_one_root_key_beside_the_online_ones(home: Path) -> None:
    told = findings(home)
    assert "keys export-root --threshold" in told["root keys"].remedy
    assert "a thief owns the run" in told["root keys are offline"].remedy
    assert PASSPHRASE_VARIABLE in told["key files are encrypted"].remedy
    assert told["key files are readable by their owner only"].remedy == ""
    assert told["the Root lasts"].remedy == ""


@pytest.mark.slow
def test_faults_of_a_folder_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "secret")
    (home / "keys/root.pem").unlink()
    (home / "keys/policy.pem").unlink()
    (home / "keys/ledger.pem").chmod(0o640)
    told = findings(home, NOW + ROOT_LIFE - 1)
    assert told["root keys are offline"] == ("root keys are offline", "yes", "")
    assert told["key files are encrypted"].remedy == ""
    assert "ledger.pem" in told["key files are readable by their owner only"].actual
    assert "policy" in told["network identity"].remedy
    assert told["the Root lasts"].remedy == "`echo2-coord keys renew`"


@pytest.mark.slow
def test_a_former_identity_is_named(home: Path) -> None:
    keys_commands.change(home, "network", now=NOW, secret=None)
    assert ", before 12D3KooW" in findings(home)["network identity"].actual


def test_what_payments_lack_is_named(home: Path) -> None:
    *_, root = setup.read_documents(RunFolder(home))[1]
    settings = PayoutSection(rail="https", url="https://x.example", credentials=str(home / "token"))
    rail, approvers = key_checks.payments(settings, root)
    assert (rail.check, rail.actual) == ("payments by https", "not possible yet")
    assert f"cannot read payout.credentials {home / 'token'}" in rail.remedy
    assert "`echo2-coord keys make-payout`" in approvers.remedy
    (home / "token").write_text("t0ken")
    (home / "token").chmod(0o600)
    assert key_checks.payments(settings, root)[0].remedy == ""
    program = key_checks.payments(PayoutSection(rail="command", command=str(home / "pay")), root)[0]
    assert "no absolute path of a program that may be run" in program.remedy


def test_a_device_that_is_not_here_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_checks.device_and_threads(LearnerSection(device="cpu"), ScorerSection()).remedy == ""
    monkeypatch.setattr(computing, "device_by_torch", lambda name: ("", "", f"no {name}"))
    for learner, scorer in ((LearnerSection(device="cuda:7"), ScorerSection()),
                            (LearnerSection(device="cpu"), ScorerSection(devices=("cuda:7",)))):  # fmt: skip
        lacking = key_checks.device_and_threads(learner, scorer)
        assert "cuda:7, which this machine cannot use (no cuda:7)" in lacking.actual
        assert lacking.remedy == "until then the run does not start"


@pytest.mark.slow
def test_the_command_prints_a_line_per_check(home: Path) -> None:
    result = CliRunner().invoke(cli.app, ["doctor", "--home", str(home)])
    assert result.exit_code == 0
    marks = {row[6:].partition(":")[0]: row[:4] for row in result.stdout.splitlines()}
    assert findings(home).keys() <= marks.keys()
    assert set(marks.values()) <= {"ok  ", "warn", "?   "}
    assert (marks["learner and scorer"], marks["devices and threads"]) == ("?   ", "ok  ")
    assert marks["disk"] != "?   "


def test_a_folder_without_a_run_is_said_to_have_none(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["doctor", "--home", str(tmp_path)])
    assert (result.exit_code, "no run in" in result.stderr) == (Exit.CONFIG, True)


def test_a_child_that_computes_gets_the_passphrase_neither_of_the_keys_nor_of_a_backup(home: Path) -> None:
    """An archive is a file that it may read, and has the keys."""
    given = keyless(RunFolder(home))
    assert (given[PASSPHRASE_VARIABLE], given["ECHO2_BACKUP_PASSPHRASE"]) == ("", "")
    assert given["ECHO2_HIDDEN_FOLDER"] == str((home / "keys").resolve())
