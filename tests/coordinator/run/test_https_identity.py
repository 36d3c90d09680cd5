"""The HTTPS identity of a run: its certificate's renewal under the same key, its pin, and the addresses of invites."""

from pathlib import Path

import pytest

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import https_identity, setup
from echo2.p2p.multiaddr import MOST_ADDRESSES
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import DAY
from tests.support.run_folders import NOW, load


def test_a_certificate_near_its_end_is_renewed_and_the_pin_stays(home: Path) -> None:
    folder, config = RunFolder(home), load(home).config
    pin, before = https_identity.pin(folder, config), folder.https_certificate.read_bytes()
    https_identity.prepare(folder, "name", NOW, None)
    assert folder.https_certificate.read_bytes() == before
    https_identity.prepare(folder, "name", NOW + 10_000 * DAY, None)
    assert folder.https_certificate.read_bytes() != before
    assert https_identity.pin(folder, config) == pin
    assert len(pin) == 32


def test_a_certificate_without_its_key_is_an_error_that_names_both_files(home: Path) -> None:
    folder = RunFolder(home)
    folder.https_key.unlink()
    with pytest.raises(LocalFault, match=r"https\.pem: put it back from your backup; or remove .*https\.crt"):
        https_identity.prepare(folder, "name", NOW, None)


def test_an_invite_has_the_listening_addresses_first_and_https_last(home: Path) -> None:
    run = load(home)
    listening = ["/ip4/192.0.2.1/tcp/4310", "/ip4/192.0.2.1/tcp/4311/https"]
    addresses = https_identity.reachable_addresses(run.config, run.peer_id, listening)
    assert addresses[0] == f"/ip4/192.0.2.1/tcp/4310/p2p/{run.peer_id}"
    assert addresses[-1].startswith("/ip4/192.0.2.1/tcp/4311/https")
    assert len(addresses) <= MOST_ADDRESSES


def test_without_a_setting_for_https_there_is_neither_pin_nor_address(home: Path) -> None:
    run = setup.load_run(home, env={}, now=NOW, flags={"https": {"listen": []}})
    assert run.https_pin is None
    assert not [one for one in https_identity.reachable_addresses(run.config, run.peer_id) if "https" in one]
