"""Names of the page: the Host header, DNS rebinding and CORS."""

import pytest
from aiohttp import ClientSession

from echo2.coordinator.web import host_names
from echo2.coordinator.web.site import Site, application, serve_web
from tests.support import pictures
from tests.support.fixed_run import FixedRun

INVITE = pictures.BUSY.invite


@pytest.mark.parametrize(
    ("host", "known", "readable"),
    {
        "loopback": ("127.0.0.1:8420", True, False),
        "loopback, IPv6": ("[::1]:8420", True, False),
        "localhost": ("localhost:8420", True, False),
        "a private address": ("192.168.1.7", True, False),
        "a public address": ("8.8.8.8:8420", True, True),
        "the page's name": ("Run.Example.Org.", True, True),
        "what is listened on": ("box.lan:8420", True, False),
        "a web site's name, which resolves to this machine": ("evil.example:8420", False, False),
        "a name that only begins like an address": ("127.0.0.1.evil.example", False, False),
        "a name that ends like the page's": ("evilrun.example.org", False, False),
        "nothing": ("", False, False),
        "no header": (None, True, False),
    }.values(),
)
def test_known_and_readable_hosts(host: str | None, known: bool, readable: bool) -> None:
    assert host_names.is_known_host(host, {"run.example.org", "box.lan"}) == known
    assert host_names.readable(host, {"run.example.org"}) == readable


async def test_no_web_site_reads_the_invite_of_a_page_on_loopback() -> None:
    """Check that other web sites cannot read the page. On 439044d any site open in the operator's browser reads
    `/api/v1/run` with the invite: by CORS, and by a name that resolves to this machine."""
    shown = FixedRun(pictures.BUSY)
    page = await serve_web(application(shown), "127.0.0.1", 0)
    read = []
    try:
        async with ClientSession(page.url) as session:
            for path in ("/", "/live", "/api/v1/run", "/api/v1/nodes", "/api/v1/nodes.csv", "/metrics"):
                evil = {"Origin": "http://evil.example"}
                async with session.get(path, headers=evil) as answer:
                    if "Access-Control-Allow-Origin" in answer.headers:
                        read.append(f"{path} by CORS")
                async with session.get(path, headers={"Host": f"evil.example:{page.port}"}) as answer:
                    if answer.status == 200 or INVITE in await answer.text():
                        read.append(f"{path} by rebinding")
    finally:
        await page.stop()
    assert read == []


async def test_an_unknown_name_is_refused_with_the_setting_to_change(site: Site) -> None:
    async with ClientSession(site.url) as session, session.get("/", headers={"Host": "<b>.example"}) as answer:
        assert answer.status == 421
        assert "web.names" in await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_public_name_lets_other_web_sites_read_the_api_and_nothing_else(site: Site) -> None:
    async with ClientSession(site.url) as session:
        for path, readable in (("/api/v1/run", True), ("/api/v1/nodes.csv", True), ("/", False), ("/metrics", False)):
            async with session.get(path, headers={"Host": "run.example.org"}) as answer:
                assert answer.status == 200
                assert answer.headers.get("Access-Control-Allow-Origin") == ("*" if readable else None)
