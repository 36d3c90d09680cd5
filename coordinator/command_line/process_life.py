"""Run one coordinator in this process, from its start to a signal.

1. SIGTERM and SIGINT cancel the daemon's task, so that every `finally` runs. A second Ctrl-C ends the process at once,
   as kill -9 does: the interpreter's own end would wait for worker threads. SIGINT is handled even if the parent
   ignored it, as a shell does for background jobs of a script. Nodes do the same.
2. Lock and ports are probed before anything is started, so that a conflict gives one line for the operator and no
   traceback. The daemon acquires them itself later.
"""

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Sequence

from echo2.coordinator.database.run_folder import lock_run
from echo2.coordinator.run.disk_room import check_room_to_run
from echo2.coordinator.run.learner_checks import check_card, check_libraries
from echo2.coordinator.run.setup import Run
from echo2.coordinator.settings.computing import check_present
from echo2.p2p.multiaddr import address_of
from echo2.runtime import descriptors
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit


def check_start(run: Run) -> None:
    """Check the libraries, the devices, the card's memory, the room on the disk, the run folder's lock and every TCP
    port (rule 2). Raises `FolderInUse`, `LocalFault`, `SettingsFault`."""
    web = run.config.web
    check_libraries()
    check_present(run.config.learner, run.config.scorer)
    if run.config.scorer.ray:
        from echo2.coordinator.ray_scorers.cluster_check import check_cluster  # a run without Ray loads none of it

        check_cluster(run.config.scorer)
    check_card(run.folder.model, run.config)
    check_room_to_run(run.folder, run.config.scorer.own_number)
    with lock_run(run.folder):
        check_port(web.host, web.port, host_setting="web.host", fix="choose another with --port or web.port")
        for name in ("network", "https"):
            setting = f"{name}.listen"
            for host, port in tcp_ports(getattr(run.config, name).listen):
                check_port(host, port, host_setting=setting, fix=f"choose another in {setting}")


def serve_until_stopped(run: Run) -> None:
    """Run the coordinator; blocks until SIGTERM, which returns, or Ctrl-C, which raises KeyboardInterrupt. Raises the
    daemon's errors."""
    descriptors.raise_limit()
    descriptors.watch()
    if asyncio.run(serve_until_cancelled(run)):
        raise KeyboardInterrupt


def tcp_ports(addresses: Sequence[str]) -> list[tuple[str, int]]:
    """Return (IP address, port) of each multiaddress that is plain TCP over IP."""
    listening = [matches for matches in map(address_of, addresses) if matches.is_listening]
    return [(matches.host, matches.port) for matches in listening if matches.port is not None]


def check_port(host: str, port: int, *, host_setting: str, fix: str) -> None:
    """Bind the port and release it. Raises `LocalFault` if that fails. `host_setting`: the setting that names the host.
    `fix`: what to do about the port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise LocalFault(f"{host} is no address of this machine ({error.strerror}): correct {host_setting}") from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise LocalFault(f"{host} is no address of this machine: correct {host_setting}") from error
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({os.strerror(error.errno or 0)})"
        raise LocalFault(f"port {port} of {host} {why}: {fix}") from error


async def serve_until_cancelled(run: Run) -> bool:
    """Run the daemon until SIGTERM or SIGINT; any other cancellation is raised. Return whether it was SIGINT."""
    from echo2.coordinator.command_line.serving import serve

    task = asyncio.current_task()
    assert task is not None
    loop, received = asyncio.get_running_loop(), set[int]()

    def stop(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in received:
            os.write(2, b"echo2-coord: interrupted twice: ended at once\n")
            os._exit(Exit.INTERRUPTED)
        if not received:
            loop.call_soon_threadsafe(task.cancel)
        received.add(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        await serve(run)
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number, handler in before.items():
            if number not in received:
                signal.signal(number, handler)
    return signal.SIGINT in received
