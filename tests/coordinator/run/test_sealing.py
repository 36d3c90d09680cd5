"""The sealer: keys by kind of document, and stored documents after a change of keys."""

from pathlib import Path

from echo2.coordinator.run import keys_commands, setup
from echo2.coordinator.run.sealing import Sealer
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.identity import public_bytes
from tests.support.run_folders import NOW, load


def signers(sealed: bytes) -> set[bytes]:
    return {signature.key for signature in decode_unverified(sealed).signatures}


def test_each_kind_is_sealed_by_the_key_of_its_role(home: Path) -> None:
    run = load(home)
    sealer = Sealer(run)
    for kind, key in (("version", run.keys.policy), ("lease", run.keys.channel), ("receipt", run.keys.ledger)):
        assert signers(sealer(kind, b"payload")) == {public_bytes(key)}


def test_a_stored_lease_is_sealed_again_only_after_its_key_was_replaced(home: Path) -> None:
    run = load(home)
    stored = Sealer(run)("lease", b"payload")
    assert Sealer(run).again("lease", stored) == stored
    keys_commands.change(home, "ledger", now=NOW + 1, secret=None)
    run.take(setup.load_run(home, env={}, now=NOW + 1))
    assert Sealer(run).again("lease", stored) == stored
    keys_commands.change(home, "channel", now=NOW + 2, secret=None)
    run.take(setup.load_run(home, env={}, now=NOW + 2))
    renewed = Sealer(run).again("lease", stored)
    assert signers(renewed) == {public_bytes(run.keys.channel)} != signers(stored)
    assert decode_unverified(renewed).payload == b"payload"
