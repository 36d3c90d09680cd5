"""The ledger as static files: a stranger's own client, and the product's verification over them."""

import asyncio
import base64
import hashlib
import shutil
import sqlite3
import struct
import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, web

from echo2.coordinator.accounts import ledger_tiles
from echo2.coordinator.accounts.ledger_tiles import BundlePart
from echo2.coordinator.database.database import Database
from echo2.coordinator.ledger_files.page_client import PageClient
from echo2.coordinator.run import root_keys
from echo2.coordinator.run.setup import Run
from echo2.coordinator.web.site import application, serve_web
from echo2.ledger.ledger_entries import Tampered
from echo2.ledger.tile_audit import AuditedPage, audit_tiles
from echo2.ledger.tile_places import TilePlace, place_of
from echo2.p2p.envelope import seal
from echo2.p2p.errors import Unreachable
from echo2.p2p.wire_types import encode
from echo2.protocol.root_chain import Untrusted, root_hash
from echo2.runtime.errors import LocalFault
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.run_folders import NOW, make_run, write_model
from tests.support.site_visits import Visit, fetched
from tests.support.worked_ledger import work

ENTRIES = 256 + 45
"""Under the head; 3 more are behind it."""


class TiledRun(FixedRun):
    """A page over the ledger of a run. `altered`: path of a tile or bundle -> its bytes instead."""

    def __init__(self, run: Run) -> None:
        self.run, self.altered = run, dict[str, bytes]()
        with Database.read(run.folder.database) as database:
            note = database.value("SELECT note FROM ledger_heads ORDER BY number DESC LIMIT 1")
        ledger = msgspec.structs.replace(pictures.BUSY.ledger, note=note)
        super().__init__(msgspec.structs.replace(pictures.BUSY, ledger=ledger))

    def ledger_tile(self, level: int, place: TilePlace) -> bytes | None:
        with Database.read(self.run.folder.database) as database:
            return self.altered.get(f"tile/{level}/{place.path()}") or ledger_tiles.tile(database, level, place)

    def ledger_bundle(self, place: TilePlace, first: int) -> BundlePart | None:
        if (altered := self.altered.get(f"entries/{place.path()}")) is not None:
            return BundlePart(altered, place.width)
        with Database.read(self.run.folder.database) as database:
            return ledger_tiles.bundle_part(database, place, first)

    def sealed_logs(self) -> list[bytes]:
        return []

    def sealed_roots(self) -> list[bytes]:
        return list(self.run.roots)

    def sealed_runspec(self) -> bytes:
        return self.run.runspec_sealed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tiles")
    new_run = make_run(folder / "run", write_model(folder / "model"))
    work(new_run, 0, ENTRIES - 1, NOW)
    work(new_run, ENTRIES - 1, 3)
    return new_run


@pytest.fixture
def tiled(run: Run) -> TiledRun:
    return TiledRun(run)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def root_over(digests: list[bytes]) -> bytes:
    """Return the Merkle tree hash of RFC 6962, section 2.1, over hashed leaves."""
    if len(digests) == 1:
        return digests[0]
    split = 1 << (len(digests) - 1).bit_length() - 1
    return sha256(b"\1" + root_over(digests[:split]) + root_over(digests[split:]))


async def stranger(session: ClientSession) -> tuple[int, bytes, list[bytes], list[bytes], bytes]:
    """Read a ledger by the paths of C2SP tlog-tiles alone: size and root of the checkpoint, entries, digests, and the
    tile of the whole subtrees."""
    _, _, note = await fetched(session, "/ledger/head")
    _, size, root, *_ = note.decode().split("\n")
    whole, part = divmod(int(size), 256)
    names = [*(f"{number:03d}" for number in range(whole)), *([f"{whole:03d}.p/{part}"] if part else [])]
    entries: list[bytes] = []
    digests: list[bytes] = []
    for name in names:
        _, _, body = await fetched(session, f"/ledger/entries/{name}")
        while body:
            (length,) = struct.unpack_from(">I", body)
            entries.append(body[4 : 4 + length])
            body = body[4 + length :]
        _, _, body = await fetched(session, f"/ledger/tile/0/{name}")
        digests += [body[at : at + 32] for at in range(0, len(body), 32)]
    _, _, above = await fetched(session, f"/ledger/tile/1/000.p/{whole}")
    return int(size), base64.b64decode(root), entries, digests, above


async def test_a_stranger_computes_the_signed_root_from_entries_and_from_tiles(visit: Visit, tiled: TiledRun) -> None:
    size, root, entries, digests, above = await stranger(await visit(application(tiled)))
    assert size == len(entries) == ENTRIES
    assert [sha256(b"\0" + entry) for entry in entries] == digests
    assert root_over(digests) == root
    assert root_over(digests[:256]) == above
    assert sha256(b"\1" + above + root_over(digests[256:])) == root


async def test_any_cache_may_hold_whole_files_for_ever_and_partial_ones_for_a_day(
    visit: Visit, tiled: TiledRun
) -> None:
    session = await visit(application(tiled))
    for path, cached in {
        "tile/0/000": True,
        "entries/000": True,
        "tile/0/001.p/45": False,
        "tile/1/000.p/1": False,
    }.items():
        status, headers, body = await fetched(session, f"/ledger/{path}")
        assert status == 200, path
        assert ("immutable" in headers["Cache-Control"]) == cached, path
        assert headers["Cache-Control"].startswith("public, max-age="), path
        assert path.startswith("entries") or len(body) <= 256 * 32
        status, _, body = await fetched(session, f"/ledger/{path}", **{"If-None-Match": headers["Etag"]})
        assert (status, body) == (304, b""), path
    _, headers, _ = await fetched(session, "/ledger/head")
    assert headers["Cache-Control"] == "no-cache"


async def test_what_no_head_covers_and_what_is_no_path_is_not_there(visit: Visit, tiled: TiledRun) -> None:
    session = await visit(application(tiled))
    absent = "tile/0/001", "tile/0/001.p/46", "tile/0/002", "tile/1/000", "tile/2/000.p/1", "tile/9/000", "entries/001"
    wrong = "tile/0/0", "tile/0/x000/000", "tile/0/000.p/256", "tile/0/000.p/0", "tile/0/000.p/01", "tile/x/000"
    for path in [
        *absent,
        *wrong,
        "entries/1e3",
        "entries/001.p/48",
        "entries/x999/x999/x999/x999/999",
        "tile/0/" + "9" * 60,
    ]:
        assert (await fetched(session, f"/ledger/{path}"))[0] == 404, path


def test_a_place_has_one_path_and_a_path_one_place() -> None:
    paths = {
        TilePlace(0): "000", TilePlace(67, 12): "067.p/12", TilePlace(1_234): "x001/234",
        TilePlace(1_234_067, 255): "x001/x234/067.p/255", TilePlace(1_000_000): "x001/x000/000",
    }  # fmt: skip
    for place, path in paths.items():
        assert (place.path(), place_of(path)) == (path, place)


async def audited(tiled: TiledRun) -> AuditedPage:
    """Verify a page as `echo2-coord ledger verify URL` does."""
    site = await serve_web(application(tiled), "127.0.0.1", 0)
    page = PageClient(site.url)
    try:
        return await asyncio.to_thread(audit_tiles, page.fetch)
    finally:
        page.close()
        await site.stop()


async def test_the_product_verifies_a_page_over_its_tiles(tiled: TiledRun) -> None:
    report = await audited(tiled)
    with Database.read(tiled.run.folder.database) as database:
        tip = database.value("SELECT hash FROM entries WHERE seq = ?", (ENTRIES,))
    assert (report.entries, report.tip, report.run) == (ENTRIES, tip, tiled.run.id)
    assert report.first_root == root_hash(tiled.run.roots[0])
    assert any(str(ENTRIES) in shown for shown in report.lines())
    assert report.lines()[-1] == "accrued     3.000 RE by 1 node"


async def test_the_page_of_a_run_of_money_has_its_debt_stated_in_its_currency(tmp_path: Path) -> None:
    money = {
        "market": {"enabled": True, "budget": "2.5", "reserve": "0.01"},
        "payout": {"currency": "EUR", "rail": "csv"},
    }
    paid = make_run(tmp_path / "run", write_model(tmp_path / "model"), settings=money)
    work(paid, 0, 5, NOW)
    assert (await audited(TiledRun(paid))).lines()[-1] == "owed        0.00000005 EUR to 1 node"


async def test_the_runspec_of_another_run_is_refused(tmp_path: Path, tiled: TiledRun) -> None:
    other = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    tiled.sealed_runspec = lambda: other.runspec_sealed  # type: ignore[method-assign]
    with pytest.raises(Untrusted, match="the RunSpec is not signed by this run's root key"):
        await audited(tiled)


async def test_a_currency_of_a_page_writes_no_line_and_no_control_character(tiled: TiledRun) -> None:
    keys = root_keys.present(tiled.run.folder.path / "keys", tiled.run.root.roles["root"].keys, None)
    spec = msgspec.structs.replace(tiled.run.runspec, price_mode="market", currency="\n\x1b[2Jok\u202e")
    sealed = seal("runspec", tiled.run.id, encode(spec), *keys)
    tiled.sealed_runspec = lambda: sealed  # type: ignore[method-assign]
    assert (await audited(tiled)).lines()[-1] == "owed        0.000003 ??[2Jok? to 1 node"


def test_a_bundle_is_read_in_parts_of_bounded_size(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.read(run.folder.database) as database:
        whole_bundle = ledger_tiles.bundle_part(database, TilePlace(0), 0)
        assert whole_bundle is not None
        assert whole_bundle.end == 256
        monkeypatch.setattr(ledger_tiles, "PART_BYTES", 1_000)
        parts = [BundlePart(b"", 0)]
        while parts[-1].end < 256:
            part = ledger_tiles.bundle_part(database, TilePlace(0), parts[-1].end)
            assert part is not None
            parts.append(part)
    assert b"".join(part.content for part in parts) == whole_bundle.content
    assert len(parts) > 10
    assert max(len(part.content) for part in parts) < 1_500


def test_a_bundle_ends_where_run_sqlite_lacks_an_entry_under_the_head(run: Run, tmp_path: Path) -> None:
    damaged = shutil.copy(run.folder.database, tmp_path / "run.sqlite")
    with closing(sqlite3.connect(damaged)) as connection:
        connection.execute("DROP TRIGGER entries_are_never_removed")
        connection.execute("DELETE FROM entries WHERE seq > 100")
        connection.commit()
    with Database.read(damaged) as database:
        part = ledger_tiles.bundle_part(database, TilePlace(0), 0)
        assert part is not None
        assert part.end == 100
        assert ledger_tiles.bundle_part(database, TilePlace(0), part.end) is None


FALSE = {
    "a tile with another digest": ("tile/0/000", lambda body: bytes([body[0] ^ 1]) + body[1:], Untrusted, "0/000"),
    "a tile that is too long": ("tile/1/000.p/1", lambda body: body + bytes(32), Untrusted, "1/000.p/1"),
    "a bundle cut off": ("entries/001.p/45", lambda body: body[:-3], Tampered, f"entry {ENTRIES}: its bundle ends"),
    "a bundle with more behind it": ("entries/000", lambda body: body + b"\0", Tampered, "further bytes"),
    "an edited entry": (
        "entries/000",
        lambda body: body.replace(b"work:7", b"work:0", 1),
        Tampered,
        "has the key work:0",
    ),
    "an entry of 4 GiB": ("entries/000", lambda body: b"\xff" * 4 + body[4:], Tampered, "entry 1: is missing"),
}


@pytest.mark.parametrize("why", FALSE)
async def test_a_false_file_is_named(why: str, tiled: TiledRun) -> None:
    path, change, fault, words = FALSE[why]
    kind, _, place = path.partition("/")
    with Database.read(tiled.run.folder.database) as database:
        if kind == "tile":
            honest = ledger_tiles.tile(database, int(place[0]), place_of(place[2:]) or TilePlace(0))
        else:
            part = ledger_tiles.bundle_part(database, place_of(place) or TilePlace(0), 0)
            honest = part and part.content
    assert honest is not None
    tiled.altered[path] = change(honest)
    with pytest.raises(fault, match=words):
        await audited(tiled)


async def test_a_checkpoint_that_nobody_signed_is_refused(tiled: TiledRun) -> None:
    note = tiled.state.ledger.note.replace(f"\n{ENTRIES}\n", f"\n{ENTRIES - 1}\n")
    tiled.state = msgspec.structs.replace(tiled.state, ledger=msgspec.structs.replace(tiled.state.ledger, note=note))
    with pytest.raises(Untrusted, match="no ledger key of the newest Root signed the checkpoint"):
        await audited(tiled)


def whole(page: PageClient, path: str) -> bytes:
    with page.fetch(path) as body:
        return body.read()


async def test_a_page_that_is_no_page_is_said_to_be_none() -> None:
    for url in ("ftp://host/", "http://", "http://host:99999/", "http://host/?a=1"):
        with pytest.raises(LocalFault, match="is no address of a page"):
            PageClient(url)
    site = await serve_web(application(FixedRun(pictures.BUSY)), "127.0.0.1", 0)
    page = PageClient(site.url)
    with pytest.raises(Unreachable, match="is it the page of a run"):
        await asyncio.to_thread(whole, page, "nothing")
    page.close()
    await site.stop()
    with pytest.raises(Unreachable, match="no page answers"):
        await asyncio.to_thread(whole, page, "head")


async def test_a_busy_page_is_asked_again_after_the_time_that_it_names(tiled: TiledRun) -> None:
    site = await serve_web(application(tiled), "127.0.0.1", 0)
    waits: list[float] = []
    app_busy = iter([True, True])
    honest = tiled.ledger_tile

    def busy(level: int, place: TilePlace) -> bytes | None:
        if next(app_busy, False):
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "5"})
        return honest(level, place)

    tiled.ledger_tile = busy  # type: ignore[method-assign]
    page = PageClient(site.url, waits.append)
    try:
        assert len(await asyncio.to_thread(whole, page, "tile/0/000")) == 256 * 32
        assert waits == [5, 5]
    finally:
        page.close()
        await site.stop()


async def test_a_refusal_that_breaks_off_is_said_with_the_address() -> None:
    """As of a page that promises a body in parts, and ends within it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nno")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        page = PageClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:.* ended within"):
            await asyncio.to_thread(audit_tiles, page.fetch)
        page.close()


async def test_documents_that_are_read_from_files_are_read_beside_the_event_loop(visit: Visit) -> None:
    threads, run = [], FixedRun(pictures.BUSY)

    def sealed_logs() -> list[bytes]:
        threads.append(threading.current_thread())
        return []

    run.sealed_logs = sealed_logs  # type: ignore[method-assign]
    status, _, body = await fetched(await visit(application(run)), "/ledger/restored")
    assert (status, msgspec.msgpack.decode(body)) == (200, [])
    assert threads != [threading.main_thread()]
