"""A rail of a plug-in that is not installed, or is broken: one sentence that says what to install, and nothing lost."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.rails import registry
from echo2.coordinator.rails.rail_kind import GROUP
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.runtime.exit_codes import Exit
from echo2.runtime.settings import SettingsFault

INSTALL = r"in a clone of echo2 run `\S+ -m pip install --no-deps \./plugins/echo2-rails`"


@pytest.mark.parametrize("rail", ["bank", "https"])
def test_a_run_whose_rail_has_no_plugin_is_not_made(rail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: ())
    sets = ("market.enabled=true", "market.budget=1", "market.reserve=1", f"payout.rail={rail}")
    argv = ["init", str(tmp_path / "run"), "--model", "tiny", *(part for one in sets for part in ("--set", one))]
    result = CliRunner().invoke(cli.app, argv)
    assert result.exit_code == Exit.CONFIG
    assert f"payout.rail is {rail}, which needs the plug-in echo2-rails: in a clone of echo2 run" in " ".join(
        result.stderr.split()
    )
    assert list(tmp_path.iterdir()) == []


def test_a_plugin_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("bank", "no_such_package:BANK_RAIL", GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **_: (broken,))
    with pytest.raises(SettingsFault, match=rf"cannot be imported \(No module named 'no_such_package'\): {INSTALL}"):
        registry.check(PayoutSection(rail="bank"))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("raise RuntimeError('no licence')", rf"cannot be imported \(no licence\): {INSTALL}"),
        ("def broken(:", rf"cannot be imported \(invalid syntax .*\): {INSTALL}"),
        ("", rf"cannot be imported \(module 'odd_rail' has no attribute 'RAIL'\): {INSTALL}"),
        ("RAIL = 5", rf"whose plug-in gives no rail: {INSTALL}"),
    ],
)
def test_a_plugin_that_breaks_is_one_sentence(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_rail.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_rail", raising=False)
    odd = EntryPoint("bank", "odd_rail:RAIL", GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **_: (odd,))
    with pytest.raises(SettingsFault, match=sentence):
        registry.check(PayoutSection(rail="bank"))


def test_of_two_packages_with_a_rail_of_one_name_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    both = tuple(EntryPoint("bank", f"{package}:BANK", GROUP) for package in ("echo2_rails.bank_file", "impostor"))
    monkeypatch.setattr(registry, "entry_points", lambda **_: both)
    with pytest.raises(SettingsFault, match=r"echo2_rails.bank_file:BANK and impostor:BANK each have a rail"):
        registry.check(PayoutSection(rail="bank"))


@pytest.mark.parametrize("rail", ["points", "csv", "command"])
def test_the_other_rails_need_no_plugin(rail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: pytest.fail("a plug-in is looked for"))
    registry.account_check(PayoutSection.model_validate({"rail": rail}))("alice@example.org")
