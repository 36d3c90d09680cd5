"""Root keys, m of n: made where told, and a Root by fewer of them than must sign is none."""

import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.run import carried_files, keys, keys_commands, root_keys, setup
from echo2.coordinator.run.keys import digits
from echo2.coordinator.run.root_request import RootRequest, SetChange, SignedRoot
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.identity import load_key, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys, Root
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support.run_folders import NOW, load

LATER = NOW + 24 * 3600_000


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.run_folders import write_model

    place = tmp_path_factory.mktemp("two_of_three")
    model = write_model(place / "model")
    config = setup.settings_for(str(model), {"run": {"name": "a run", "task": "reverse"}}, env={})
    plan = root_keys.plan("2-of-3", place / "safe", place / "run")
    setup.init(place / "run", str(model), config, now=NOW, root_plan=plan)
    return place


@pytest.fixture
def place(_made: Path, tmp_path: Path) -> Path:
    """A folder with a run of 2 of 3 root keys in `run`, and one key each in `a`, `b` and `c`."""
    shutil.copytree(_made / "run", tmp_path / "run")
    for name, path in zip("abc", sorted((_made / "safe").iterdir()), strict=True):
        (tmp_path / name).mkdir()
        shutil.copy2(path, tmp_path / name / path.name)
    return tmp_path


def newest(place: Path) -> Root:
    return load(place / "run").root


def request(place: Path, now: int = LATER, **change: object) -> Path:
    path = place / "request"
    keys_commands.export_root(place / "run", path, SetChange(**change), now=now)  # type: ignore[arg-type]
    return path


def sign(place: Path, name: str, path: Path, **more: bool) -> list[str]:
    return keys_commands.sign(path, place / name, secret=None, confirm=lambda lines: True, **more)


def install(place: Path, *paths: Path) -> list[str]:
    return keys_commands.install(place / "run", *paths, secret=None)


def signed(path: Path) -> Path:
    return path.with_name(path.name + carried_files.SIGNED_SUFFIX)


def of(place: Path, name: str) -> bytes:
    return public_bytes(load_key(next((place / name).glob("root*.pem"))))


def test_root_keys_lie_where_told_and_never_beside_the_online_ones(place: Path) -> None:
    assert not list((place / "run").rglob("root*.pem"))
    role = newest(place).roles[ROOT]
    assert (role.threshold, len(role.keys)) == (2, 3)
    assert {of(place, name) for name in "abc"} == set(role.keys)
    assert {one.key for one in decode_unverified((place / "run/root/1.root").read_bytes()).signatures} == set(role.keys)


def test_two_holders_on_two_machines_renew_a_run_one_after_the_other(place: Path) -> None:
    path = request(place)
    told = "\n".join(sign(place, "a", path))
    assert "1 of 2 required signatures of the present root keys; not yet:" in told
    with pytest.raises(Untrusted, match="1 of 2 required signatures of the present root keys"):
        install(place, signed(path))
    assert newest(place).serial == 1
    assert "echo2-coord keys import-root request.signed" in "\n".join(sign(place, "c", path))
    assert "Root 2 is installed" in install(place, signed(path))
    assert newest(place).serial == 2


def test_two_holders_sign_at_the_same_time_and_their_answers_count_together(place: Path) -> None:
    path = request(place)
    answers = []
    for name in "ab":
        sign(place, name, path)
        answers.append(signed(path).rename(place / f"answer {name}"))
    with pytest.raises(Untrusted, match="1 of 2"):
        install(place, answers[0], answers[0])
    install(place, *answers)
    assert newest(place).serial == 2


def test_answers_to_two_requests_do_not_count_together(place: Path) -> None:
    answers = []
    for name, now in (("a", LATER), ("b", LATER + 1)):
        path = request(place, now=now)
        sign(place, name, path)
        answers.append(signed(path).rename(place / f"answer {name}"))
    with pytest.raises(Untrusted, match="not to one request"):
        install(place, *answers)
    assert newest(place).serial == 1


def test_an_online_key_is_revoked_by_the_root_keys_of_a_named_folder(place: Path) -> None:
    (place / "here").mkdir()
    shutil.copy2(next((place / "a").iterdir()), place / "here")
    arguments: dict[str, object] = {"now": LATER, "secret": None, "since": NOW, "root_place": place / "here"}
    before = sorted((place / "run/keys").iterdir())
    with pytest.raises(LocalFault, match=r"1 of 2 required root keys are in .*here: name their folder with --keys"):
        keys_commands.change(place / "run", "channel", **arguments)  # type: ignore[arg-type]
    assert sorted((place / "run/keys").iterdir()) == before, "a key was made for a Root that cannot be signed"
    shutil.copy2(next((place / "c").iterdir()), place / "here")
    keys_commands.change(place / "run", "channel", **arguments)  # type: ignore[arg-type]
    assert list(newest(place).revoked.values()) == [NOW]


def test_a_lost_root_key_is_replaced_by_those_that_remain(place: Path) -> None:
    lost, new = of(place, "b"), public_bytes(keys.make_next(place / "d", ROOT, None))
    path = request(place, add=[new], drop=[digits(lost)], since=NOW)
    for name in "ac":
        sign(place, name, path, set_changes=True)
    install(place, signed(path))
    root = newest(place)
    assert set(root.roles[ROOT].keys) == {of(place, name) for name in "acd"}
    assert root.revoked == {lost: NOW}
    again = request(place, now=LATER + 1)
    for name in "cd":
        sign(place, name, again)
    install(place, signed(again))
    assert newest(place).serial == 3
    third = request(place, now=LATER + 2)
    with pytest.raises(LocalFault, match=r"none of the root keys .* is in .*b: name its folder"):
        sign(place, "b", third)


def test_a_lower_threshold_takes_both_sets_consent_and_is_said_loudly(place: Path) -> None:
    path = request(place, threshold=1)
    with pytest.raises(Untrusted, match="Root 2 LOWERS the threshold of root: 1 of 3 keys sign, before 2 of 3"):
        sign(place, "a", path)
    assert not signed(path).exists()
    sign(place, "a", path, set_changes=True)
    with pytest.raises(Untrusted, match="1 of 2 required signatures of the present root keys"):
        install(place, signed(path))
    sign(place, "b", path, set_changes=True)
    told = "\n".join(install(place, signed(path)))
    assert "Root 2 LOWERS the threshold of root: 1 of 3 keys sign, before 2 of 3" in told
    later = request(place, now=LATER + 1, threshold=3)
    sign(place, "a", later, set_changes=True)
    with pytest.raises(Untrusted, match="1 of 3 required signatures of the new root keys"):
        install(place, signed(later))
    for name in "bc":
        sign(place, name, later, set_changes=True)
    assert "RAISES the threshold of root" in "\n".join(install(place, signed(later)))
    assert load(place / "run").runspec.name == "a run"


def test_a_run_of_one_root_key_becomes_one_of_two_of_three(home: Path, tmp_path: Path) -> None:
    added = [public_bytes(keys.make_next(tmp_path / name, ROOT, None)) for name in "ab"]
    path = tmp_path / "request"
    keys_commands.export_root(home, path, SetChange(threshold=2, add=added), now=LATER)
    for folder in (home / "keys", tmp_path / "a"):
        keys_commands.sign(path, folder, secret=None, confirm=lambda lines: True, set_changes=True)
    keys_commands.install(home, signed(path), secret=None)
    role = load(home).root.roles[ROOT]
    assert (role.threshold, len(role.keys)) == (2, 3)


BAD_CHANGES: dict[str, tuple[dict[str, object], str]] = {
    "a threshold above the number of keys": ({"threshold": 4}, "4 of 3 root keys should sign"),
    "no key left": ({"drop": ["0" * 16]}, "no root key has the fingerprint 0000"),
    "more keys than fit": ({"add": [bytes([n]) * 32 for n in range(14)]}, "at most 16 keys"),
    "a key twice": ({"add": [b"k" * 32, b"k" * 32]}, "is a root key already"),
    "a revocation of no key": ({"since": NOW}, "name each of them with --drop"),
}


@pytest.mark.parametrize("what", BAD_CHANGES)
def test_a_change_that_no_root_can_have_is_refused(what: str, place: Path) -> None:
    change, sentence = BAD_CHANGES[what]
    with pytest.raises(LocalFault, match=sentence):
        request(place, **change)


def test_a_replaced_only_root_key_of_several_names_the_command(place: Path) -> None:
    (place / "here").mkdir()
    for name in "ab":
        shutil.copy2(next((place / name).iterdir()), place / "here")
    with pytest.raises(LocalFault, match=r"role root has 3 keys.*keys export-root"):
        keys_commands.change(place / "run", ROOT, now=LATER, secret=None, root_place=place / "here")


def test_a_stranger_cannot_add_a_signature_nor_an_unequal_answer(place: Path, tmp_path: Path) -> None:
    path = request(place)
    sign(place, "a", path)
    asked = msgspec.msgpack.decode(path.read_bytes(), type=RootRequest)
    stranger = keys.make_next(tmp_path / "x", ROOT, None)
    own = {ROOT: RoleKeys(keys=[public_bytes(stranger)], threshold=1)}
    forged = msgspec.structs.replace(decode(asked.root, Root), roles=newest(place).roles | own)
    answer = msgspec.msgpack.decode(signed(path).read_bytes(), type=SignedRoot)
    for sealed in (
        seal(ROOT, forged.run, encode(forged), stranger),
        seal(ROOT, forged.run, encode(forged), stranger, load_key(next((place / "a").iterdir()))),
    ):
        (tmp_path / "forged").write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(answer, root=sealed)))
        with pytest.raises(Untrusted):
            install(place, tmp_path / "forged")
    assert newest(place).serial == 1


@pytest.mark.parametrize("text", ["3-of-2", "0-of-1", "2-of-17", "two of three", "2-of-3-of-4", "-1-of-2", ""])
def test_root_keys_that_cannot_be_are_refused_before_anything_is_made(text: str, tmp_path: Path) -> None:
    arguments = ["init", str(tmp_path / "run"), "--root-keys", text, "--root-out", str(tmp_path / "safe"), "--yes"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == Exit.CONFIG
    assert "as 2-of-3" in result.stderr
    assert not list(tmp_path.iterdir())


def test_several_root_keys_need_a_folder_outside_the_run(tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match="needs --root-out DIR"):
        root_keys.plan("2-of-3", None, tmp_path / "run")
    with pytest.raises(LocalFault, match="lies in the run folder"):
        root_keys.plan("2-of-3", tmp_path / "run/keys", tmp_path / "run")


def test_a_place_that_cannot_be_a_folder_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(LocalFault, match="is no folder, and none can be made there"):
            root_keys.plan("2-of-3", out, tmp_path / "run")
    assert root_keys.plan("2-of-3", tmp_path / "new/below", tmp_path / "run").number == 3


def test_init_says_what_its_root_keys_mean(home: Path, tmp_path: Path) -> None:
    told = "\n".join(root_keys.meaning(root_keys.ONE_HERE, home))
    assert "ONE ROOT KEY, ON THIS DISK" in told
    assert "--root-keys 2-of-3 --root-out DIR" in told
    (tmp_path / "safe").mkdir()
    told = "\n".join(root_keys.meaning(root_keys.plan("2-of-3", tmp_path / "safe", home), home))
    assert "A thief needs 2 of them. The run survives the loss of 1." in told
    assert "STILL ON THE SAME DISK" in told
    assert "a second place" in "\n".join(root_keys.meaning(root_keys.plan(None, tmp_path / "safe", home), home))


def test_keys_show_lists_every_root_key_and_how_many_must_sign(place: Path) -> None:
    result = CliRunner().invoke(cli.app, ["keys", "show", "--home", str(place / "run")])
    assert "signed   by 2 of 3 root keys" in result.stdout
    assert sum(line.startswith("root ") and line.endswith("offline") for line in result.stdout.splitlines()) == 3
