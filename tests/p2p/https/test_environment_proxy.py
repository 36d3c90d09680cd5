"""The proxy of HTTPS connections: which variable counts, and a real connection through one."""

import asyncio
import os

import pytest

from echo2.p2p.errors import Unreachable
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.environment_proxy import proxy_to

TARGET = "https://run.example.org:4311/echo2"
HTTP = "http://proxy.example:8080"
CASES = {
    "none": ({}, None),
    "the usual one": ({"HTTPS_PROXY": HTTP}, HTTP),
    "in small letters": ({"https_proxy": HTTP}, HTTP),
    "one for all": ({"ALL_PROXY": HTTP}, HTTP),
    "the nearer one counts": ({"ALL_PROXY": "socks5://p:1", "HTTPS_PROXY": HTTP}, HTTP),
    "host and port": ({"HTTPS_PROXY": "proxy.example:8080"}, HTTP),
    "an address": ({"ALL_PROXY": "192.0.2.7:3128"}, "http://192.0.2.7:3128"),
    "with a password": ({"HTTPS_PROXY": "http://me:word@proxy.example:8080"}, "http://me:word@proxy.example:8080"),
    "an empty variable": ({"HTTPS_PROXY": "", "ALL_PROXY": " "}, None),
    "a host that needs none": ({"HTTPS_PROXY": HTTP, "NO_PROXY": "example.org"}, None),
    "no host needs one": ({"ALL_PROXY": "socks5://p:1", "NO_PROXY": "*"}, None),
    "for other protocols": ({"HTTP_PROXY": HTTP}, None),
}
REFUSED = {
    "socks": ({"ALL_PROXY": "socks5h://127.0.0.1:1080"}, "ALL_PROXY names a proxy of socks5h, and echo2 takes only"),
    "TLS to the proxy": ({"HTTPS_PROXY": "https://proxy.example"}, "HTTPS_PROXY names a proxy of https"),
    "no port": ({"HTTPS_PROXY": "proxy.example:many"}, "HTTPS_PROXY is no address of a proxy"),
    "no host": ({"HTTPS_PROXY": "http://"}, "HTTPS_PROXY is no address of a proxy"),
    "two words": ({"HTTPS_PROXY": "proxy example:8080"}, "HTTPS_PROXY is no address of a proxy"),
}


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("variables", "proxy"), CASES.values(), ids=CASES)
def test_a_proxy_of_the_environment_is_taken(
    variables: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables)
    assert proxy_to(TARGET) == proxy


@pytest.mark.parametrize(("variables", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_proxy_that_cannot_be_used_is_named(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables)
    with pytest.raises(Unreachable, match=sentence):
        proxy_to(TARGET)


async def test_a_client_connects_through_host_and_port_of_all_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy answers that the target is not there: the client has asked it, and nobody else."""
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 502 not there\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    client = HttpsClient("node", b"p" * 32)
    running = asyncio.ensure_future(client.run())
    await client.ready()
    with pytest.raises(Unreachable, match="502"):
        await client.dial(["/dns4/run.example.org/tcp/4311/https"])
    assert asked == [b"CONNECT run.example.org:4311 HTTP/1.1\r\n"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    server.close()
    await server.wait_closed()
