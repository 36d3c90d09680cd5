"""Requests for a Root and their answers: what is described, checked and signed."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.run import carried_files, root_request
from echo2.coordinator.run.keys import spaced_fingerprint
from echo2.coordinator.run.root_request import RootRequest, SignedRoot
from echo2.p2p.identity import generate_key, load_key, public_bytes
from echo2.protocol import root_chain
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.errors import LocalFault
from tests.support.run_folders import NOW, load


def test_a_request_is_signed_and_its_answer_follows_the_newest_root(home: Path) -> None:
    run, new = load(home), public_bytes(generate_key())
    asked = root_request.request(run.roots, run.runspec_sealed, NOW + 1, "ledger", new, NOW)
    before, root = root_request.check_root_request(asked)
    old = before.roles["ledger"].keys[0]
    lines = root_request.describe_root(before, root, asked)
    assert f"ledger   {spaced_fingerprint(old)} -> {spaced_fingerprint(new)}" in lines
    assert any(line_text.startswith(f"revoked  {spaced_fingerprint(old)} from") for line_text in lines)
    answer = root_request.sign_root(asked, [load_key(home / "keys/root.pem")])
    assert root_request.verify_answer(answer, run.roots, run.runspec_sealed) == root
    assert root.revoked == {old: NOW}


def test_an_answer_to_an_outdated_request_is_refused(home: Path) -> None:
    run, key = load(home), load_key(home / "keys/root.pem")
    asked = root_request.request(run.roots, run.runspec_sealed, NOW + 1, None, None, None)
    answer = root_request.sign_root(asked, [key])
    with pytest.raises(LocalFault, match="requested before Root 2 was installed"):
        root_request.verify_answer(answer, [*run.roots, answer.root], run.runspec_sealed)


def test_only_the_runs_root_key_signs(home: Path) -> None:
    run = load(home)
    asked = root_request.request(run.roots, run.runspec_sealed, NOW + 1, None, None, None)
    with pytest.raises(Untrusted, match="not the root key of Root 1"):
        root_request.sign_root(asked, [generate_key()])
    with pytest.raises(ValueError, match="exactly where the request asks for one"):
        root_request.sign_root(asked, [load_key(home / "keys/root.pem")], generate_key())


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"not an envelope"])
def test_an_answer_with_a_damaged_runspec_is_refused(damaged: bytes, home: Path) -> None:
    run, key = load(home), load_key(home / "keys/root.pem")
    asked = root_request.request(run.roots, run.runspec_sealed, NOW + 1, None, None, None)
    answer = msgspec.structs.replace(root_request.sign_root(asked, [key]), runspec=damaged)
    with pytest.raises(Untrusted, match="the RunSpec is not signed by this run's root key"):
        root_request.verify_answer(answer, run.roots, run.runspec_sealed)


def test_a_request_without_roots_is_refused(home: Path) -> None:
    run = load(home)
    asked = root_request.request(run.roots, run.runspec_sealed, NOW + 1, None, None, None)
    with pytest.raises(Untrusted):
        root_request.check_root_request(msgspec.structs.replace(asked, roots=[]))


def test_a_new_root_key_seals_the_runspec_beside_the_old_one(home: Path) -> None:
    run, old, new = load(home), load_key(home / "keys/root.pem"), generate_key()
    asked = root_request.request(run.roots, run.runspec_sealed, NOW + 1, ROOT, None, None)
    answer = root_request.sign_root(asked, [old], new)
    root = root_request.verify_answer(answer, run.roots, run.runspec_sealed)
    assert root.roles[ROOT].keys == [public_bytes(new)]
    for valid_under in (run.root, root):
        assert root_chain.check_runspec(answer.runspec, valid_under) == run.runspec


@pytest.mark.parametrize(("kind", "name"), [(RootRequest, "request for a Root"), (SignedRoot, "signed Root")])
def test_another_file_is_refused_by_name(kind: type, name: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xc1")
    with pytest.raises(LocalFault, match=f"file is not a {name}: name the file"):
        carried_files.decode_carried(file, kind, name)
    file.write_bytes(bytes(carried_files.MOST_BYTES + 1))
    with pytest.raises(LocalFault, match=f"file is not a {name}: it has"):
        carried_files.decode_carried(file, kind, name)
