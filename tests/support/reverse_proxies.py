"""nginx and Caddy before a page of this machine, set up by the snippets of docs/first-run.md."""

import asyncio
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.paths import ROOT

START_SECONDS = 20.0


def snippet(program: str) -> str:
    """Return the configuration of nginx or Caddy as docs/first-run.md has it."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "docs/first-run.md").read_text(), re.MULTILINE | re.DOTALL)
    begins = {"nginx": "server {", "caddy": "run.example.org {"}[program]
    (block,) = [one for one in blocks if one.startswith(begins)]
    assert "127.0.0.1:8420" in block
    return block


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _nginx(folder: Path, entrance: int, page: str) -> list[str]:
    """Write the configuration of nginx; return its command."""
    text = snippet("nginx").replace("listen 80;", f"listen 127.0.0.1:{entrance};").replace("127.0.0.1:8420", page)
    assert str(entrance) in text
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} pid {folder}/pid; error_log {folder}/log; events {{}}\n"
        f"http {{ access_log off; {places}\n{text} }}\n"
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")]


def _caddy(folder: Path, entrance: int, page: str) -> list[str]:
    """Write the configuration of Caddy, without the certificate that it would fetch; return its command."""
    text = snippet("caddy").replace("run.example.org {", f"http://run.example.org:{entrance} {{")
    text = text.replace("127.0.0.1:8420", page)
    (folder / "Caddyfile").write_text(f"{{\n admin off\n auto_https off\n default_bind 127.0.0.1\n}}\n{text}")
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@asynccontextmanager
async def proxying(program: str, folder: Path, page: str) -> AsyncIterator[str]:
    """Run a web server before the page at `page` (host and port); yield the address of its entrance. The program must
    be there."""
    folder.mkdir()  # noqa: ASYNC240 (no event waits for it)
    entrance = _free_port()
    command = (_nginx if program == "nginx" else _caddy)(folder, entrance, page)
    env = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    child = await asyncio.create_subprocess_exec(
        shutil.which(command[0], path=path) or command[0], *command[1:], env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        await asyncio.wait_for(_until_open(entrance), START_SECONDS)
        yield f"http://127.0.0.1:{entrance}"
    finally:
        child.terminate()
        _, said = await child.communicate()
        assert child.returncode in (0, -15), said.decode()


def is_installed(program: str) -> bool:
    """Tell whether a web server is on this machine."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is not None


async def _until_open(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return
