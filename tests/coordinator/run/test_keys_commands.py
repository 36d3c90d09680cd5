"""`echo2-coord keys`: a new Root with the root key present, or through a file. After a crash at any point, the run
starts."""

import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.run import carried_files, keys, keys_commands, setup
from echo2.coordinator.run.keys import ONLINE, ROLES
from echo2.coordinator.run.root_request import RootRequest, SignedRoot
from echo2.coordinator.run.signing import ROOT_LIFE
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.identity import generate_key, load_key, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys, Root, RunSpec
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.terminal_question import ask_agreement
from tests.support.cuts import cuts
from tests.support.run_folders import NOW

LATER = NOW + 340 * 24 * 3600_000


def load(home: Path, now: int = LATER) -> setup.Run:
    return setup.load_run(home, env={}, now=now)


def change(home: Path, role: str | None, *, now: int = LATER, since: int | None = None, out: Path | None = None) -> str:
    return "\n".join(keys_commands.change(home, role, now=now, secret=None, since=since, out=out))


def said(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    return result.exit_code, result.stdout + result.stderr


def test_a_renewed_run_has_the_same_keys_and_another_year(home: Path) -> None:
    before = load(home)
    told = change(home, None)
    after = load(home, before.root.expires + 1)
    assert (after.root.serial, after.root.roles, after.root.expires) == (2, before.root.roles, LATER + ROOT_LIFE)
    assert after.root.issued == LATER
    assert "keys     unchanged" in told
    assert "Root 2 is installed" in told
    assert "the next start loads the Root" in told


def test_a_run_whose_root_has_expired_is_renewed_all_the_same(home: Path) -> None:
    late = NOW + ROOT_LIFE
    with pytest.raises(Untrusted, match="`echo2-coord keys renew`"):
        load(home, late)
    change(home, None, now=late)
    assert load(home, late).root.serial == 2


@pytest.mark.parametrize("role", ROLES)
def test_a_rotated_key_is_another_one_and_all_else_stays(role: str, home: Path) -> None:
    before = load(home)
    told = change(home, role)
    after = load(home)
    changed = [one for one in ROLES if after.root.roles[one] != before.root.roles[one]]
    assert (changed, after.root.revoked) == ([role], {})
    assert f"no longer needed: {home / 'keys' / f'{role}.pem'}" in told
    assert (after.invite(), after.peer_id, after.runspec) == (before.invite(), before.peer_id, before.runspec)
    for path in (home / "keys").glob("*.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (home / "keys/network.pem").exists() == (role == "channel")
    (home / f"keys/{role}.pem").unlink()
    assert public_bytes(load(home).keys.network) == keys.identity(after.chain)


def test_a_revoked_key_is_named_in_every_later_root_with_its_time(home: Path) -> None:
    old = load(home).root.roles["ledger"].keys[0]
    told = change(home, "ledger", since=NOW + 5)
    assert f"revoked  {keys.spaced_fingerprint(old)} from" in told
    change(home, "channel", now=LATER + 1)
    change(home, None, now=LATER + 2)
    assert load(home).root.revoked == {old: NOW + 5}


def test_the_root_key_signs_its_successor_and_the_runspec_goes_with_it(home: Path) -> None:
    first = load(home)
    change(home, "root")
    change(home, "root", now=LATER + 1, since=NOW)
    run = load(home)
    signers = {one.key for one in decode_unverified(run.runspec_sealed).signatures}
    assert signers == {root.roles["root"].keys[0] for root in run.chain[1:]}
    assert run.runspec == first.runspec
    assert run.root.revoked == {run.chain[1].roles["root"].keys[0]: NOW}


@pytest.mark.parametrize("role", [None, *ROLES])
def test_an_offline_root_key_signs_through_a_request_file(role: str | None, home: Path, tmp_path: Path) -> None:
    safe = tmp_path / "safe"
    safe.mkdir()
    (home / "keys/root.pem").rename(safe / "root.pem")
    with pytest.raises(LocalFault, match="--request FILE and sign that on the machine with the key"):
        change(home, role)
    assert load(home).root.serial == 1
    told = change(home, role, out=safe / "new.request")
    assert "echo2-coord keys sign-root new.request --keys FOLDER" in told
    assert load(home).root.serial == 1, "a request changes nothing"
    shown: list[str] = []

    def agreed(lines: list[str]) -> bool:
        shown.extend(lines)
        return True

    told = "\n".join(keys_commands.sign(safe / "new.request", safe, secret=None, confirm=agreed))
    assert "echo2-coord keys import-root new.request.signed" in told
    assert (role is None) == ("keys     unchanged" in shown)
    before = load(home)
    keys_commands.install(home, safe / "new.request.signed", secret=None)
    after = load(home)
    assert (after.root.serial, after.peer_id) == (2, before.peer_id)
    assert (after.root.roles == before.root.roles) == (role is None)
    assert not list((home / "keys").glob("root*")), "a root key came near the network"
    told = "\n".join(keys_commands.install(home, safe / "new.request.signed", secret=None))
    assert "is installed already" in told


def test_an_answer_that_is_declined_signs_nothing(home: Path, tmp_path: Path) -> None:
    change(home, "channel", out=tmp_path / "new.request")
    lines = keys_commands.sign(tmp_path / "new.request", home / "keys", secret=None, confirm=lambda lines: False)
    assert lines == ["nothing was signed"]
    assert not (tmp_path / "new.request.signed").exists()


def test_a_question_without_an_answer_is_said_to_have_none_and_signs_nothing(home: Path, tmp_path: Path) -> None:
    change(home, None, out=tmp_path / "request")
    code, message = said("keys", "sign-root", tmp_path / "request", "--keys", home / "keys")
    told = "echo2-coord: the input ended without an answer to 'Sign this?': answer y or n, or add --yes\n"
    assert (code, message.endswith(f"\n{told}")) == (Exit.CONFIG, True), message
    assert not (tmp_path / "request.signed").exists()


def test_an_interrupted_question_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(question: str, *, default: bool) -> bool:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise typer.Abort from None

    monkeypatch.setattr(typer, "confirm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask_agreement("Sign this?", default=False)


def test_two_requests_for_one_serial_are_not_both_installed(home: Path, tmp_path: Path) -> None:
    for role in ("channel", "policy"):
        change(home, role, out=tmp_path / role)
        keys_commands.sign(tmp_path / role, home / "keys", secret=None, confirm=lambda lines: True)
    keys_commands.install(home, tmp_path / "policy.signed", secret=None)
    with pytest.raises(LocalFault, match="Root 2, requested before Root 2 was installed: write a new request"):
        keys_commands.install(home, tmp_path / "channel.signed", secret=None)
    assert load(home).root.serial == 2


def test_an_answer_for_another_run_names_both_runs(home: Path, tmp_path: Path) -> None:
    change(home, "policy", out=tmp_path / "policy")
    answer = carried_files.decode_carried(_signed_file(home, tmp_path / "policy"), SignedRoot, "signed Root")
    sealed, key = decode_unverified(answer.root), load_key(home / "keys/root.pem")
    foreign = msgspec.structs.replace(decode(sealed.payload, Root), run=b"x" * 32)
    other = msgspec.structs.replace(answer, root=seal("root", b"x" * 32, encode(foreign), key))
    (tmp_path / "other.signed").write_bytes(msgspec.msgpack.encode(other))
    with pytest.raises(LocalFault, match=f"this Root belongs to run {b'x'.hex() * 32}, the folder to run .* --home"):
        keys_commands.install(home, tmp_path / "other.signed", secret=None)
    assert load(home).root.serial == 1


def test_without_the_root_key_of_today_its_fingerprint_is_named(home: Path, tmp_path: Path) -> None:
    change(home, "root")
    new = next((home / "keys").glob("root-*.pem"))
    new.rename(tmp_path / new.name)
    wanted = keys.spaced_fingerprint(load(home).root.roles["root"].keys[0])
    (home / "keys/root.pem").unlink()
    with pytest.raises(LocalFault, match=f"the root key {wanted} is not in .*/keys: put its file there"):
        change(home, None)
    change(home, None, out=tmp_path / "new.request")
    with pytest.raises(
        LocalFault, match=f"the root key {wanted} is not in .*keys: name its folder with --keys.*{new.name}"
    ):
        keys_commands.sign(tmp_path / "new.request", home / "keys", secret=None, confirm=lambda lines: True)


def _signed_file(home: Path, request: Path) -> Path:
    keys_commands.sign(request, home / "keys", secret=None, confirm=lambda lines: True)
    return request.with_name(request.name + carried_files.SIGNED_SUFFIX)


Forged = Callable[[RootRequest, Root], RootRequest]


def with_root(**changes: object) -> Forged:
    return lambda asked, root: msgspec.structs.replace(asked, root=encode(msgspec.structs.replace(root, **changes)))


BAD_REQUESTS: dict[str, Forged] = {
    "a serial left out": with_root(serial=4),
    "another run": with_root(run=b"x" * 32),
    "a life of two years": with_root(expires=LATER + 2 * ROOT_LIFE),
    "a root key slipped in": lambda asked, root: with_root(
        roles=root.roles | {"root": RoleKeys(keys=[b"k" * 32], threshold=1)}
    )(asked, root),
    "a role that is missing": lambda asked, root: with_root(
        roles={role: one for role, one in root.roles.items() if role != "ledger"}
    )(asked, root),
    "a role of two keys": lambda asked, root: with_root(
        roles=root.roles | {"ledger": RoleKeys(keys=[b"k" * 32, b"l" * 32], threshold=1)}
    )(asked, root),
    "a revocation forgotten": with_root(revoked={}),
    "a revoked key named": lambda asked, root: with_root(
        revoked=root.revoked | {root.roles["policy"].keys[0]: 1}
    )(asked, root),
    "a time before the last Root's": with_root(issued=NOW),
    "no Root": lambda asked, root: msgspec.structs.replace(asked, root=b"\xc1"),
    "a chain that does not hold": lambda asked, root: msgspec.structs.replace(asked, roots=asked.roots[1:]),
    "another RunSpec": lambda asked, root: msgspec.structs.replace(
        asked, runspec=seal("runspec", root.run, decode_unverified(asked.runspec).payload, generate_key())
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", BAD_REQUESTS)
def test_a_request_that_asks_for_more_than_the_next_root_is_not_signed(lie: str, home: Path, tmp_path: Path) -> None:
    change(home, "ledger", since=NOW)
    change(home, "channel", now=LATER + 10, out=tmp_path / "request")
    asked = msgspec.msgpack.decode((tmp_path / "request").read_bytes(), type=RootRequest)
    forged = BAD_REQUESTS[lie](asked, decode(asked.root, Root))
    (tmp_path / "request").write_bytes(msgspec.msgpack.encode(forged))
    with pytest.raises(Untrusted):
        keys_commands.sign(tmp_path / "request", home / "keys", secret=None, confirm=lambda lines: True)
    assert not (tmp_path / "request.signed").exists()


def test_a_signed_root_with_another_runspec_is_not_installed(home: Path, tmp_path: Path) -> None:
    change(home, None, out=tmp_path / "request")
    keys_commands.sign(tmp_path / "request", home / "keys", secret=None, confirm=lambda lines: True)
    answer = msgspec.msgpack.decode((tmp_path / "request.signed").read_bytes(), type=SignedRoot)
    spec = decode(decode_unverified(answer.runspec).payload, RunSpec)
    other = seal(
        "runspec", spec.run, encode(msgspec.structs.replace(spec, staleness=9)), load_key(home / "keys/root.pem")
    )
    (tmp_path / "other").write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(answer, runspec=other)))
    with pytest.raises(Untrusted, match="another RunSpec"):
        keys_commands.install(home, tmp_path / "other", secret=None)
    assert load(home).root.serial == 1


@pytest.mark.parametrize("content", [b"", b"\xc1", b"x" * (carried_files.MOST_BYTES + 1)])
def test_an_unrelated_file_is_refused_by_its_name(content: bytes, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    for words in (
        ("sign-root", tmp_path / "file", "--keys", home / "keys", "--yes"),
        ("import-root", tmp_path / "file"),
    ):
        code, told = said("keys", *words, *(("--home", home) if words[0] == "import-root" else ()))
        assert code == Exit.CONFIG
        assert str(tmp_path / "file") in told


def test_no_key_is_made_under_another_passphrase_than_the_coordinators(home: Path, monkeypatch) -> None:
    monkeypatch.setenv("ECHO2_KEY_PASSPHRASE", "another")
    before = sorted(path.name for path in (home / "keys").iterdir())
    code, told = said("keys", "rotate", "policy", "--home", home)
    assert (code, "takes no passphrase" in told) == (Exit.CONFIG, True)
    assert sorted(path.name for path in (home / "keys").iterdir()) == before


def test_a_lost_online_key_is_replaced_and_a_lost_identity_is_reported(home: Path) -> None:
    (home / "keys/policy.pem").unlink()
    with pytest.raises(LocalFault, match="echo2-coord keys rotate policy"):
        load(home)
    change(home, "policy")
    assert load(home).root.serial == 2
    (home / "keys/channel.pem").unlink()
    with pytest.raises(LocalFault, match="every address of this run ends in its peer id"):
        change(home, "channel", now=LATER + 1)


def test_a_time_of_revocation_is_in_the_past(home: Path) -> None:
    for text, told in (("2999-01-01", "is not in the past"), ("yesterday", "should be a time such as")):
        code, message = said("keys", "revoke", "ledger", "--home", home, "--from", text)
        assert (code, told in message) == (Exit.CONFIG, True)
    code, message = said("keys", "export-root", home / "request", "--home", home, "--revoke-from", "yesterday")
    assert (code, message.startswith("echo2-coord: --revoke-from should be a time such as")) == (Exit.CONFIG, True)
    assert keys_commands.time_of("2026-11-22T08:00", NOW) == 1_795_334_400_000
    assert load(home).root.serial == 1


def test_an_identity_that_ceases_to_answer_is_named(home: Path) -> None:
    first = load(home).peer_id
    assert "ceases to answer" not in change(home, "network")
    assert f"{first}, ceases to answer: nodes that know it alone" in change(home, "network", now=LATER + 1)
    month = 31 * 24 * 3600_000
    change(home, None, now=LATER + month)
    assert "ceases to answer" not in change(home, "network", now=LATER + month + 1), "30 days are over"


def test_an_identity_that_is_the_channel_key_too_is_not_revoked_and_no_file_is_made(home: Path) -> None:
    before = sorted((home / "keys").iterdir())
    code, message = said("keys", "revoke", "network", "--home", home)
    assert (code, "rotate or revoke channel first" in message) == (Exit.CONFIG, True)
    assert sorted((home / "keys").iterdir()) == before


@pytest.mark.parametrize("role", ["channel", "root"])
@pytest.mark.slow_but("channel")
def test_cut_off_at_any_point_a_rotation_leaves_a_folder_that_starts(role: str, home: Path) -> None:
    def serial() -> int:
        return load(home).root.serial

    def life() -> Iterator[int]:
        yield serial()
        change(home, role)
        yield serial()

    kept = home.parent / "kept"
    shutil.copytree(home, kept, copy_function=shutil.copy2)
    seen = set()
    for cut in cuts(life(), home):
        run = load(home)
        assert run.root.serial in (cut.before, cut.after), cut.where
        assert run.peer_id == load(kept).peer_id, cut.where
        assert {public_bytes(getattr(run.keys, one)) for one in ONLINE} == {
            run.root.roles[one].keys[0] for one in ONLINE
        }
        change(home, role, now=LATER + 1)
        assert load(home).root.serial == run.root.serial + 1, cut.where
        assert {stat.S_IMODE(path.stat().st_mode) for path in (home / "keys").glob("*.pem")} == {0o600}
        seen.add(run.root.serial)
    assert seen == {1, 2}
