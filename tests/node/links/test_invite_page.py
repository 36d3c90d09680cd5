"""An invite from a run's page: who vouches for it, and when its owner is asked."""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio.to_thread
import msgspec
import pytest
from aiohttp import web

from echo2.node.errors import BadConfig, TryLater
from echo2.node.links.invite_page import ServedInvite, fetch_invite, invite_of_page, page_of
from echo2.p2p.discovery.invite import Invite
from echo2.runtime.errors import LocalFault
from tests.support.payout_provider import trusted_certificate

INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/192.0.2.1/tcp/4310"])
OTHER = Invite(run=b"s" * 32, root_hash=b"h" * 32, addresses=["/ip4/192.0.2.2/tcp/4310"])
PAGE = "https://run.example.org"

Serve = Callable[..., Awaitable[str]]
Ask = Callable[[str], str]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that serves texts by path on the loopback, and returns the address."""
    runners: list[web.AppRunner] = []

    async def open_(texts: dict[str, str], context: ssl.SSLContext | None = None) -> str:
        async def answer(request: web.Request) -> web.Response:
            if request.path not in texts:
                return web.Response(status=404, text="not here")
            if texts[request.path].startswith("to "):
                raise web.HTTPFound(texts[request.path].removeprefix("to "))
            return web.Response(text=texts[request.path])

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runners[-1].addresses[0][1]
        return f"http{'s' if context else ''}://127.0.0.1:{port}"

    yield open_
    for runner in runners:
        await runner.cleanup()


def never(question: str) -> str:
    raise AssertionError("nobody is asked")


def join(
    home: Path, serves: Invite | None, accepted: str | None = None, ask: Ask | None = never, doubt: str = ""
) -> Invite:
    """Join by a page that serves an invite; None: it cannot be read."""

    async def fetched(page: str) -> ServedInvite:
        if serves is None:
            raise TryLater("the page cannot be read")
        return ServedInvite(serves, doubt)

    return invite_of_page(PAGE, home, accepted, ask, fetched)


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("https://run.example.org", "https://run.example.org"),
        ("<https://run.example.org/nodes>", "https://run.example.org/nodes"),
        ("http://127.0.0.1:8420/", "http://127.0.0.1:8420/"),
        ("run.example.org", "https://run.example.org"),
        ("run.example.org:8443/first ", "https://run.example.org:8443/first"),
        (INVITE.to_text(), None),
        ("echo2-abc.def", None),
        ("localhost", None),
        ("", None),
    ],
)
def test_a_page_is_told_from_an_invite(text: str, page: str | None) -> None:
    assert page_of(text) == page


@pytest.mark.parametrize("path", ["", "/", "/nodes", "/nodes/", "/first/run/"])
async def test_the_invite_is_fetched_from_any_page_of_the_site(serve: Serve, path: str) -> None:
    address = await serve({"/invite": INVITE.to_text() + "\n", "/nodes": "a list"})
    assert (await fetch_invite(address + path)).invite == INVITE


async def test_a_page_below_a_path_serves_its_own_invite(serve: Serve) -> None:
    address = await serve({"/one/invite": INVITE.to_text(), "/invite": OTHER.to_text()})
    assert (await fetch_invite(f"{address}/one")).invite == INVITE


async def test_plain_http_is_doubted_and_so_is_a_way_that_begins_with_it(serve: Serve, tmp_path: Path) -> None:
    server, client = trusted_certificate(tmp_path)
    safe = await serve({"/invite": INVITE.to_text()}, server)
    plain = await serve({"/invite": f"to {safe}/invite"})
    assert (await fetch_invite(safe, client)).doubt == ""
    assert "http://" in (await fetch_invite(plain, client)).doubt


async def test_a_certificate_that_nobody_vouches_for_is_doubted(serve: Serve, tmp_path: Path) -> None:
    server, _ = trusted_certificate(tmp_path)
    served = await fetch_invite(await serve({"/invite": INVITE.to_text()}, server))
    assert served.invite == INVITE
    assert "certificate of 127.0.0.1 does not hold" in served.doubt


@pytest.mark.parametrize("texts", [{}, {"/invite": "<html>"}])
async def test_a_page_of_something_else_is_named(serve: Serve, texts: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match="serves no invite: is it the page of a run"):
        await fetch_invite(await serve(texts))


@pytest.mark.parametrize("text", [INVITE.to_text()[:-3], "echo2-" + "1" * 4096, "echo2-" + "1" * 9000])
async def test_a_damaged_or_endless_invite_is_refused(serve: Serve, text: str) -> None:
    with pytest.raises(BadConfig, match="serves an invite that cannot be read"):
        await fetch_invite(await serve({"/invite": text}))


async def test_an_invite_may_come_in_several_pieces() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = INVITE.to_text().encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text[:20])
        await asyncio.sleep(0.1)
        writer.write(text[20:])
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (await fetch_invite(f"http://127.0.0.1:{port}")).invite == INVITE


async def test_a_page_that_does_not_answer_is_tried_later(serve: Serve) -> None:
    address = await serve({"/invite": "to /invite"})
    with pytest.raises(TryLater, match="cannot be read"):
        await fetch_invite(address)
    with pytest.raises(TryLater, match="cannot be read"):
        await fetch_invite("http://127.0.0.1:9/")


async def test_a_page_whose_run_is_starting_is_tried_later(serve: Serve) -> None:
    with pytest.raises(TryLater, match="/invite has no invite yet: its run is starting; try again in a minute"):
        await fetch_invite(await serve({"/invite": ""}))


async def test_a_page_in_a_thread_is_confirmed_once(serve: Serve, tmp_path: Path) -> None:
    address, asked = await serve({"/invite": INVITE.to_text()}), []

    def ask(question: str) -> str:
        asked.append(question)
        return INVITE.fingerprint.lower()

    for _ in range(2):
        assert await anyio.to_thread.run_sync(invite_of_page, address, tmp_path, None, ask) == INVITE
    assert len(asked) == 1
    assert "Type the fingerprint" in asked[0]


def test_a_certificate_that_holds_needs_a_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadConfig, match="not confirmed"):
        join(tmp_path, INVITE, ask=lambda question: "")
    assert INVITE.fingerprint in capsys.readouterr().err
    assert join(tmp_path, INVITE, ask=lambda question: "y") == INVITE
    assert join(tmp_path, INVITE) == INVITE


def test_a_doubted_page_joins_by_its_fingerprint_alone_which_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doubt = "http:// does not show who answers"
    for answer in ("y", "", OTHER.fingerprint):
        with pytest.raises(BadConfig, match="another run"):
            join(tmp_path, INVITE, ask=lambda question, answer=answer: answer, doubt=doubt)
    assert INVITE.fingerprint not in capsys.readouterr().err
    assert join(tmp_path, INVITE, INVITE.fingerprint, doubt=doubt) == INVITE


@pytest.mark.parametrize("doubt", ["", "http:// does not show who answers"])
def test_a_wrong_fingerprint_is_repeated_as_fingerprints_are_printed_and_one_wrong_letter_is_placed(
    doubt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, it was repeated without its dashes."""
    right = INVITE.fingerprint
    one = f"{right[:6]}{'A' if right[6] != 'A' else 'B'}{right[7:]}"
    for typed, shown, placed in (
        (one.lower().replace("-", " "), one, " (one letter in group 2)"),
        (OTHER.fingerprint.replace("-", ""), OTHER.fingerprint, ""),
        (right[:-1], right[:-1], ""),
        (right * 2, f"{right}...", ""),
    ):
        with pytest.raises(BadConfig) as given:
            join(tmp_path, INVITE, typed, doubt=doubt)
        assert f"that of the fingerprint {shown}: correct --accept-fingerprint{placed}, or ask" in str(given.value)
        if doubt:
            with pytest.raises(BadConfig) as asked:
                join(tmp_path, INVITE, ask=lambda question, typed=typed: typed, doubt=doubt)
            assert str(asked.value).endswith(f"the fingerprint {shown}: compare it with the operator's{placed}")
        if shown[:19] != right:
            assert right not in f"{given.value}{capsys.readouterr().err}"


def test_without_a_terminal_the_fingerprint_is_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(BadConfig, match=f"--accept-fingerprint FINGERPRINT.*{INVITE.fingerprint}"):
        join(tmp_path, INVITE, ask=None)
    with pytest.raises(BadConfig, match=r"does not hold: join with .* FINGERPRINT`: .* `echo2-coord invite` prints it"):
        join(tmp_path, INVITE, ask=None, doubt="the certificate does not hold")
    assert join(tmp_path, INVITE, INVITE.fingerprint, ask=None) == INVITE


@pytest.mark.parametrize("doubt", ["", "http:// does not show who answers"])
def test_an_input_that_ends_joins_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, doubt: str) -> None:
    ended = io.StringIO()
    monkeypatch.setattr(ended, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", ended)
    with pytest.raises(LocalFault, match=r"^the input ended without an answer to '.*: .*, or add --accept-fingerprint"):
        join(tmp_path, INVITE, ask=None, doubt=doubt)
    assert not (tmp_path / "pages.json").exists()


def test_a_page_that_serves_another_run_than_before_is_refused(tmp_path: Path) -> None:
    join(tmp_path, INVITE, INVITE.fingerprint)
    with pytest.raises(BadConfig, match=f"fingerprint {INVITE.fingerprint} before, and serves another now"):
        join(tmp_path, OTHER)
    with pytest.raises(BadConfig, match="another run than that of the fingerprint"):
        join(tmp_path, OTHER, INVITE.fingerprint)
    assert join(tmp_path, OTHER, OTHER.fingerprint) == OTHER
    assert join(tmp_path, OTHER) == OTHER


@pytest.mark.parametrize("changed", [{"root_hash": b"x" * 32}, {"https_key": b"x" * 32}])
def test_a_page_that_serves_the_same_run_by_another_root_or_key_is_refused(
    tmp_path: Path, changed: dict[str, bytes]
) -> None:
    join(tmp_path, INVITE, INVITE.fingerprint)
    with pytest.raises(BadConfig, match="and serves another now: ask the operator"):
        join(tmp_path, msgspec.structs.replace(INVITE, **changed))
    moved = msgspec.structs.replace(INVITE, addresses=OTHER.addresses)
    assert join(tmp_path, moved) == moved


def test_a_page_of_which_a_home_knows_the_run_alone_is_confirmed_again(tmp_path: Path) -> None:
    (tmp_path / "pages.json").write_text(json.dumps({PAGE: INVITE.run.hex()}))
    with pytest.raises(BadConfig, match="not joined: the fingerprint was not confirmed"):
        join(tmp_path, INVITE, ask=lambda question: "")
    assert join(tmp_path, INVITE, ask=lambda question: "y") == INVITE


def test_while_the_page_is_away_the_run_joined_last_goes_on(tmp_path: Path) -> None:
    join(tmp_path, INVITE, INVITE.fingerprint)
    with pytest.raises(TryLater):
        join(tmp_path, None)
    (tmp_path / "invite").write_text(INVITE.to_text())
    assert join(tmp_path, None) == INVITE
    (tmp_path / "invite").write_text(OTHER.to_text())
    with pytest.raises(TryLater):
        join(tmp_path, None)
