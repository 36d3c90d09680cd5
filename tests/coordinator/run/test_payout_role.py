"""The role that lets money go: in a Root only if the root keys sign it, and kept by every later Root."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import keys, keys_commands
from echo2.coordinator.run.keys import PAYOUT
from echo2.coordinator.run.root_request import SetChange
from echo2.p2p.identity import load_key, public_bytes
from echo2.protocol.authority import ROLES, RoleKeys
from echo2.runtime.errors import LocalFault
from tests.support.payout_world import add_payout_role
from tests.support.run_folders import NOW, load


def test_a_root_with_the_role_is_installed_and_the_run_loads(home: Path, tmp_path: Path) -> None:
    assert PAYOUT not in load(home).root.roles
    add_payout_role(home, tmp_path / "safe", threshold=2, number=3)
    root = load(home).root
    assert root.roles.keys() == {*ROLES, PAYOUT}
    assert (root.roles[PAYOUT].threshold, len(root.roles[PAYOUT].keys)) == (2, 3)
    files = [load_key(path, None) for path in (tmp_path / "safe").glob("payout-*.pem")]
    assert {public_bytes(key) for key in files} == set(root.roles[PAYOUT].keys)
    assert not list(RunFolder(home).keys.glob("payout*")), "no payout key is in the run folder"


def test_later_roots_keep_the_role_and_its_keys_can_be_replaced(home: Path, tmp_path: Path) -> None:
    add_payout_role(home, tmp_path / "safe")
    first = load(home).root.roles[PAYOUT]
    keys_commands.change(home, "ledger", now=NOW + 5000, secret=None)
    assert load(home).root.roles[PAYOUT] == first
    shutil.rmtree(tmp_path / "safe")
    add_payout_role(home, tmp_path / "safe")
    assert load(home).root.roles[PAYOUT].keys != first.keys


BAD = {
    "one key twice": lambda one, root: RoleKeys(keys=[one, one], threshold=1),
    "more signatures than keys": lambda one, root: RoleKeys(keys=[one], threshold=2),
    "the ledger's key": lambda one, root: RoleKeys(keys=root.roles["ledger"].keys, threshold=1),
    "the root key": lambda one, root: RoleKeys(keys=root.roles["root"].keys, threshold=1),
}


@pytest.mark.parametrize("name", BAD)
def test_keys_that_cannot_be_payout_keys_are_refused(name: str, home: Path, tmp_path: Path) -> None:
    one = public_bytes(keys.make_next(tmp_path, PAYOUT, None))
    role = BAD[name](one, load(home).root)
    with pytest.raises(LocalFault, match="payout key"):
        keys_commands.export_root(home, tmp_path / "request", SetChange(payout=role), now=NOW + 5)


def test_the_signer_is_told_who_may_let_money_go(home: Path, tmp_path: Path) -> None:
    one = public_bytes(keys.make_next(tmp_path, PAYOUT, None))
    lines = keys_commands.export_root(
        home, tmp_path / "request", SetChange(payout=RoleKeys(keys=[one], threshold=1)), now=NOW + 5
    )
    assert f"payout   1 of these keys approve payments in money: {keys.spaced_fingerprint(one)}" in lines


def test_the_commands(home: Path, tmp_path: Path) -> None:
    def called(*words: str) -> str:
        done = CliRunner().invoke(cli.app, ["keys", *words])
        assert done.exit_code == 0, done.output
        return done.output

    made = called("make-payout", "--out", str(tmp_path)).splitlines()[0]
    request = tmp_path / "pay.request"
    told = called("export-root", str(request), "--payout", made, "--home", str(home))
    assert "approve payments in money" in told
    called("sign-root", str(request), "--keys", str(RunFolder(home).keys), "--yes")
    called("import-root", f"{request}.signed", "--home", str(home))
    shown = [line for line in called("show", "--home", str(home)).splitlines() if line.startswith("payout")]
    assert len(shown) == 1
    assert shown[0].endswith("offline")
    done = CliRunner().invoke(cli.app, ["keys", "export-root", str(request), "--payout", "zz", "--home", str(home)])
    assert done.exit_code != 0
    assert "--payout should be the 64 hex digits that `keys make-payout` printed" in done.output
