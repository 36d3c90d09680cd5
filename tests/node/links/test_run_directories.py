"""Directories of runs as a node takes them: by the owner's key, and never an older one."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from echo2.node.config import NodeConfig
from echo2.node.control.discover_report import lines, rows_of
from echo2.node.errors import TryLater
from echo2.node.links.run_directories import DirectoryName, FetchedDirectory, fetch_directories, parse_directory
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.mdns import Announcement
from echo2.p2p.identity import generate_key, public_bytes
from echo2.protocol.run_directory import ListedRun, write

KEY = generate_key()
NAME = DirectoryName("https://lists.example.org/runs.json", public_bytes(KEY))
INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1"])
RUN = ListedRun(
    invite=INVITE.to_text(), name="sums", description="adds numbers", model="tiny", page="https://a.example"
)


async def look(home: Path, data: bytes, now: int = 1_500) -> FetchedDirectory:
    async def fetch(url: str) -> bytes:
        assert url == NAME.url
        return data

    (fetched,) = await fetch_directories([NAME], home, now, fetch)
    return fetched


async def test_an_older_list_than_the_one_before_is_refused_and_an_expired_one_shown_as_such(tmp_path: Path) -> None:
    first, second = (write([RUN], KEY, number, 1_000, 2_000) for number in (1, 2))
    assert (await look(tmp_path, second)).content is not None
    assert (await look(tmp_path, first)).trouble == "it is list 1, older than list 2, which was here before"
    late = await look(tmp_path, second, now=2_000)
    assert late.expired
    (row,) = rows_of([], [late])
    assert row["trouble"].startswith("this list has expired")


async def test_a_list_that_cannot_be_had_hides_no_other(tmp_path: Path) -> None:
    other = DirectoryName("https://away.example.org/x", NAME.key)

    async def fetch(url: str) -> bytes:
        if url == other.url:
            raise TryLater("it answers with status 404")
        return write([RUN], KEY, 1, 1_000, 2_000)

    fetched = await fetch_directories([other, NAME], tmp_path, 1_500, fetch)
    shown = lines(rows_of([Announcement(name="near", invite=INVITE)], fetched))
    assert "https://away.example.org/x: it answers with status 404" in shown
    assert f"  {INVITE.fingerprint}  sums (tiny; https://a.example)" in shown
    assert f"    echo2-node join --accept-fingerprint {INVITE.fingerprint}" in shown
    assert f"    echo2-node join {INVITE.to_text()}" in shown


async def test_a_second_host_with_an_older_list_leaves_the_highest_number_as_it_is(tmp_path: Path) -> None:
    mirror = DirectoryName("https://mirror.example.org/x", NAME.key)

    async def fetch(url: str) -> bytes:
        return write([RUN], KEY, 6 if url == mirror.url else 7, 1_000, 2_000)

    await fetch_directories([NAME, mirror], tmp_path, 1_500, fetch)
    late = await look(tmp_path, write([RUN], KEY, 6, 1_000, 2_000))
    assert late.trouble == "it is list 6, older than list 7, which was here before"


async def test_a_file_of_numbers_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "directories.json").write_text("[1]")
    assert (await look(tmp_path, write([RUN], KEY, 1, 1_000, 2_000))).content is not None


def test_without_runs_the_setting_is_named() -> None:
    assert lines([]) == ["no run is announced here; `directories` names lists of runs, as URL#KEY"]


def test_a_setting_is_an_address_and_a_key() -> None:
    assert parse_directory(f"{NAME.url}#{NAME.key.hex()}") == NAME


@pytest.mark.parametrize(
    "text", ["https://a.example", "https://a.example#abc", f"ftp://a#{'0' * 64}", f"https://#{'0' * 64}"]
)
def test_a_setting_without_a_key_or_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="directories"):
        NodeConfig(directories=(text,))


async def test_of_a_list_without_an_end_no_more_is_read_than_a_directory_may_have(tmp_path: Path) -> None:
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
            while sent < 100_000_000:
                writer.write(b" " * 65_536)
                await writer.drain()
                sent += 65_536
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        name = DirectoryName(f"http://127.0.0.1:{port}/runs.json", NAME.key)
        (fetched,) = await fetch_directories([name], tmp_path, 1_500)
    assert fetched.trouble == "the directory is larger than 1 MB"
    assert sent < 20_000_000, "the rest is not taken from the line"
