"""Key files and peer ids: their bytes, and a message with the fix for every file that cannot be used."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.identity import generate_key, load_key, load_or_create_key, peer_id, public_bytes, public_key, write_key
from tests.support.cuts import cuts
from tests.support.mounts import mounted
from tests.support.quick_disk import quick_folder

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
PEER = "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"
PKCS8 = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def placed(path: Path, data: bytes, permissions: int = 0o600) -> None:
    path.write_bytes(data)
    path.chmod(permissions)


def test_a_peer_id_is_the_golden_one_and_contains_its_key() -> None:
    assert public_bytes(KEY).hex() == PUBLIC
    assert peer_id(public_bytes(KEY)) == PEER
    assert public_key(PEER) == public_bytes(KEY)


@pytest.mark.parametrize(
    "text",
    {
        "nothing": "",
        "a character that base58 lacks": PEER[:-1] + "0",
        "one character less": PEER[:-1],
        "one character more": PEER + "2",
        "an RSA peer's id": "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        "text that is not ASCII": "12D3KooWé",
    }.values(),
)
def test_text_that_is_no_ed25519_peer_id_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        public_key(text)


def test_a_public_key_of_another_length_has_no_peer_id() -> None:
    with pytest.raises(Malformed):
        peer_id(bytes(33))


def test_a_key_file_is_pkcs8_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "node.key"
    write_key(path, KEY)
    assert path.read_bytes() == PKCS8
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert public_bytes(load_key(path)) == public_bytes(KEY)


def test_a_key_file_of_openssl_is_read(tmp_path: Path) -> None:
    placed(tmp_path / "key", PKCS8, 0o400)
    assert public_bytes(load_key(tmp_path / "key")).hex() == PUBLIC


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_key(tmp_path / "key", KEY)
    finally:
        os.umask(before)
    assert mode(tmp_path / "key") == 0o600


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    write_key(tmp_path / "key", KEY)
    with pytest.raises(LocalNetworkFault, match="never overwritten"):
        write_key(tmp_path / "key", generate_key())
    assert public_bytes(load_key(tmp_path / "key")) == public_bytes(KEY)


def test_a_key_file_is_created_once_and_then_read(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "key", "secret")
    assert public_bytes(load_or_create_key(tmp_path / "key", "secret")) == public_bytes(key)


def test_an_encrypted_key_opens_with_its_passphrase_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key(path, KEY, "correct horse")
    assert b"ENCRYPTED" in path.read_bytes()
    assert public_bytes(load_key(path, "correct horse")) == public_bytes(KEY)


def test_a_disk_that_fills_leaves_no_half_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LocalNetworkFault, match="No space left"):
        write_key(tmp_path / "key", KEY)
    assert list(tmp_path.iterdir()) == []


def test_a_key_file_is_whole_or_absent_whenever_it_is_cut(tmp_path: Path) -> None:
    with quick_folder() as folder:

        def life() -> Iterator[bytes]:
            yield b""
            yield public_bytes(load_or_create_key(folder / "home" / "key"))

        for cut in cuts(life(), folder):
            public = public_bytes(load_or_create_key(folder / "home" / "key"))
            assert public == cut.after or cut.before == b"", cut.where
            assert mode(folder / "home" / "key") == 0o600, cut.where


def encrypted(path: Path) -> None:
    write_key(path, KEY, "correct horse")


def of_another_kind(path: Path) -> None:
    other = X25519PrivateKey.generate()
    placed(path, other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def public_half(path: Path) -> None:
    placed(path, KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


BAD: dict[str, tuple[Callable[[Path], None], str | None, str]] = {
    "no file": (lambda path: None, None, "no key file at"),
    "a folder": (lambda path: path.mkdir(0o700), None, "cannot read"),
    "readable by the group": (lambda path: placed(path, PKCS8, 0o640), None, "chmod 600"),
    "readable by all": (lambda path: placed(path, PKCS8, 0o604), None, "chmod 600"),
    "writable by the group": (lambda path: placed(path, PKCS8, 0o620), None, "chmod 600"),
    "an empty file": (lambda path: placed(path, b""), None, "no PEM key"),
    "an image": (lambda path: placed(path, b"\x89PNG\r\n\x1a\n" + bytes(100)), None, "no PEM key"),
    "cut in the middle": (lambda path: placed(path, PKCS8[:60]), None, "no PEM key"),
    "a public key": (public_half, None, "no PEM key"),
    "a key for another purpose": (of_another_kind, None, "no Ed25519 key"),
    "a passphrase that is missing": (encrypted, None, "ECHO2_KEY_PASSPHRASE"),
    "a wrong passphrase": (encrypted, "battery staple", "the passphrase is wrong"),
    "a passphrase too many": (lambda path: placed(path, PKCS8), "battery staple", "not encrypted: unset ECHO2_KEY_"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_key_file_that_cannot_be_used_is_refused_with_the_fix(sentence: str, tmp_path: Path) -> None:
    make, passphrase, said = BAD[sentence]
    path = tmp_path / "key"
    make(path)
    with pytest.raises(LocalNetworkFault, match=said) as refused:
        load_key(path, passphrase)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_key_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key(tmp_path / "key", KEY)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(LocalNetworkFault, match="chown"):
        load_key(tmp_path / "key")


def test_a_folder_that_cannot_be_made_is_a_local_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalNetworkFault, match="cannot write key file"):
        write_key(tmp_path / "file" / "key", KEY)


def test_a_network_disk_that_gives_the_files_of_root_to_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server does so by default, and refuses `chown` too."""
    write_key(tmp_path / "node.key", KEY)
    kept = os.geteuid
    monkeypatch.setattr(os, "geteuid", lambda: kept() + 1)
    with pytest.raises(LocalNetworkFault, match=r"belongs to another user: run chown \d+ \S+node\.key$"):
        load_key(tmp_path / "node.key")
    mounted(monkeypatch, tmp_path / "proc", ("server:/home", str(tmp_path), "nfs4"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "stat", _of_nobody(Path.stat))
    with pytest.raises(LocalNetworkFault, match="the server of this network disk gives root's files to another one"):
        load_key(tmp_path / "node.key")


def _of_nobody(stat_of: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    def nobodys(path: Path, **how: bool) -> os.stat_result:
        facts = list(stat_of(path, **how))
        facts[stat.ST_UID] = 65534
        return os.stat_result(facts)

    return nobodys
