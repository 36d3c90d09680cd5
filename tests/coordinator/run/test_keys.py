"""Key files: their modes, their passphrase, and no key in a repr."""

import stat
from pathlib import Path

import pytest

from echo2.coordinator.run import keys, setup
from echo2.runtime.errors import LocalFault
from tests.support.run_folders import NOW, load, make_run


def test_every_key_file_is_the_owners_alone(home: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home / "keys").iterdir()}
    assert modes.pop("https.crt") == 0o644
    assert modes == {f"{name}.pem": 0o600 for name in (*keys.ROLES, "https")}


def test_private_keys_are_in_no_repr(home: Path) -> None:
    assert "Ed25519" not in repr(load(home).keys)


@pytest.mark.parametrize(
    ("secret", "sentence"),
    [("wrong", "the passphrase is wrong"), (None, "needs a passphrase: set ECHO2_KEY_PASSPHRASE")],
)
def test_encrypted_keys_need_their_passphrase(secret: str | None, sentence: str, tmp_path: Path, model: Path) -> None:
    make_run(tmp_path / "run", model, secret="right")
    with pytest.raises(LocalFault, match=sentence):
        setup.load_run(tmp_path / "run", env={}, now=NOW, secret=secret)
    assert setup.load_run(tmp_path / "run", env={}, now=NOW, secret="right").root.serial == 1
