"""Roots and RunSpec: signatures that must not hold are refused."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.run import keys, signing
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, load_key
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import root_chain
from echo2.protocol.authority import MOST_ROOTS, RunSpec
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from tests.support.run_folders import NOW, load


def test_after_a_new_root_key_the_runspec_must_be_sealed_again(home: Path) -> None:
    run, old, new = load(home), load_key(home / "keys/root.pem"), generate_key()
    roles = run.root.roles | keys.role_keys({"root": new})
    root = msgspec.structs.replace(run.root, serial=2, roles=roles)
    (home / "root/2.root").write_bytes(seal("root", run.id, encode(root), old, new))
    with pytest.raises(Untrusted, match="RunSpec is not signed"):
        load(home)
    (home / "run.spec").write_bytes(seal("runspec", run.id, encode(run.runspec), new))
    assert load(home).runspec == run.runspec


def test_a_signed_runspec_of_another_run_is_refused(home: Path) -> None:
    run = load(home)
    other = msgspec.structs.replace(run.runspec, run=bytes(32))
    sealed = seal("runspec", run.id, encode(other), load_key(home / "keys/root.pem"))
    assert decode(encode(other), RunSpec) == other
    with pytest.raises(Untrusted):
        root_chain.check_runspec(sealed, run.root)


def test_a_run_has_64_roots_at_most(home: Path) -> None:
    newest = load(home).root
    with pytest.raises(LocalFault, match="no more are possible"):
        signing.next_root(msgspec.structs.replace(newest, serial=MOST_ROOTS), NOW + 1, {}, {})
