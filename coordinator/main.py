"""One coordinator in this process, from its start to a signal or the end of its steps.

1. SIGTERM and SIGINT cancel the daemon's task, so that every `finally` runs; a second Ctrl-C does not wait.
   Both do so also where the parent had SIGINT ignored, as a shell has for the background jobs of a script: a node heeds
   it there too.
2. Lock and ports are tried before anything is started: a taken one is the operator's to put right, not a traceback.
   The daemon itself takes and holds them.
"""

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.run.run_folder import locked
from p2p.multiaddr import address_of
from runtime import descriptors
from runtime.errors import LocalFault

if TYPE_CHECKING:
    from coordinator.run.setup import Run


def check_start(run: "Run") -> None:
    """Rule 2. Raises `Busy`, `LocalFault`."""
    web = run.config.web
    with locked(run.folder):
        check_port(web.host, web.port, "choose another with --port or web.port")
        for name in ("network", "https"):
            for host, port in tcp_ports(getattr(run.config, name).listen):
                check_port(host, port, f"choose another in {name}.listen")


def serve_until_stopped(run: "Run") -> None:
    """Blocks. SIGTERM ends it quietly, Ctrl-C with KeyboardInterrupt. Raises what the daemon raises."""
    descriptors.raise_limit()
    descriptors.watch()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio handles SIGINT only where it is not ignored
    asyncio.run(_serve(run))


def tcp_ports(addresses: Sequence[str]) -> list[tuple[str, int]]:
    """(IP address, port) of each multiaddress that is TCP over IP and nothing more."""
    listening = [matches for matches in map(address_of, addresses) if matches.is_listening]
    return [(matches.host, matches.port) for matches in listening if matches.port is not None]


def check_port(host: str, port: int, fix: str) -> None:
    """Bind and let go. Raises `LocalFault` where that is refused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise LocalFault(f"{host} is no address of this machine ({error.strerror}): correct web.host") from error
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({os.strerror(error.errno or 0)})"
        raise LocalFault(f"port {port} of {host} {why}: {fix}") from error


async def _serve(run: "Run") -> None:
    from coordinator.daemon import serve

    task = asyncio.current_task()
    assert task is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        await serve(run)
    except asyncio.CancelledError:
        if not stopped:
            raise
