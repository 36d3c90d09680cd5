"""A rail of a plug-in that is not installed, or is broken: one sentence that says what to install, and nothing lost."""

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


@pytest.mark.parametrize("rail", ["points", "csv", "command"])
def test_the_other_rails_need_no_plugin(rail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: pytest.fail("a plug-in is looked for"))
    registry.account_check(PayoutSection.model_validate({"rail": rail}))("alice@example.org")
