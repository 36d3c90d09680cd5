"""A process in a network of its own."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SCRIPT = """
import socket, sys
from echo2.runtime import own_network
try:
    own_network.enter()
except own_network.OwnNetworkUnavailable as missing:
    print(missing)
    sys.exit(3)
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 1).close()
print(*sorted(name for _, name in socket.if_nameindex()))
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error:
    print(error.errno)
"""


def test_a_process_reaches_itself_and_nobody_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, timeout=30, check=False
    )
    if done.returncode == 3:
        pytest.skip(done.stdout)
    assert done.stdout.splitlines() == ["lo", "101"], done.stderr  # ENETUNREACH
