"""A laboratory network on this machine: hosts in network namespaces, each on a capped link to one switch.

    switch (a bridge in a namespace) ── tbf ── veth ── tbf ── host 1 (10.77.0.1)
                                     ── tbf ── veth ── tbf ── host 2 ...

1. A host's link is capped in both directions by `tc tbf`. The cap includes the Ethernet, IP and TCP headers, so the
   rate of payload is lower (`payload_rate`).
2. The network is unreachable from outside. It is removed at the end, also after an error.
3. Where the machine does not permit namespaces, `NotPermitted` is raised with the error of the command that failed.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

BURST: Final = 128 << 10
"""Bytes that a link may send at once."""
LATENCY: Final = "50ms"
"""Longest time that a packet may queue at a link; later ones are dropped."""
PROBE: Final = "benchmarks.harness.lab"


TAIL: Final = 15
"""Last lines that are told of a process that has ended."""


class ProcessEnded(Exception):
    """A process of a benchmark ended by itself; the message has its last lines."""


class NotPermitted(Exception):
    """The machine does not permit network namespaces, or lacks the command for them."""


class Process:
    """A process that runs a Python module, and exchanges JSON lines over its stdin and stdout."""

    def __init__(self, prefix: Sequence[str], module: str, *arguments: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        self._module = module
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def say(self, **message: Any) -> None:
        """Send a message. Raises `ProcessEnded`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.end() from None

    def hear(self) -> dict[str, Any]:
        """Wait for the next message, and return it. Raises `ProcessEnded`."""
        assert self._process.stdout is not None
        text_line = self._process.stdout.readline()
        if not text_line:
            raise self.end()
        message: dict[str, Any] = json.loads(text_line)
        return message

    def end(self) -> ProcessEnded:
        """Wait until the process has ended by itself; return what it ended with, and its last lines."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()[-TAIL:]
        return ProcessEnded("\n".join([f"{self._module} ended with exit code {code}", *lines]))

    def kill(self) -> None:
        """End the process, and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unread messages
                    pipe.close()


class Lab:
    """A network of `hosts` hosts, numbered from 0; host `n` has the address `address(n)`."""

    def __init__(self, hosts: int) -> None:
        self._name = f"e2-{os.getpid()}"
        self._hosts = hosts
        self._processes: list[Process] = []

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def process(self, host: int, module: str, *arguments: str) -> Process:
        """Start a process on a host. It is killed when the lab ends."""
        process = Process(["ip", "netns", "exec", self._namespace(host)], module, *arguments)
        self._processes.append(process)
        return process

    @contextlib.contextmanager
    def running(self, mbit: float) -> Iterator["Lab"]:
        """Build the network; every link carries `mbit` Mbit/s each way. Raises `NotPermitted`."""
        try:
            self._build(mbit)
            yield self
        finally:
            for process in self._processes:
                process.kill()
            self._processes.clear()
            for host in range(-1, self._hosts):
                subprocess.run(["ip", "netns", "del", self._namespace(host)], capture_output=True, check=False)

    def _namespace(self, host: int) -> str:
        return f"{self._name}-{'switch' if host < 0 else host}"

    def _build(self, mbit: float) -> None:
        switch = self._namespace(-1)
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for host in range(self._hosts):
            own = self._namespace(host)
            ip("netns", "add", own)
            port = f"port{host}"
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "line", "netns", own)
            ip("-n", switch, "link", "set", port, "master", "switch", "up")
            ip("-n", own, "addr", "add", f"{self.address(host)}/24", "dev", "line")
            ip("-n", own, "link", "set", "line", "up")
            ip("-n", own, "link", "set", "lo", "up")
            for namespace, device in ((own, "line"), (switch, port)):
                _cap(namespace, device, mbit)


def ip(*arguments: str) -> None:
    """Run the command `ip`. Raises `NotPermitted`."""
    _permitted(["ip", *arguments])


def _cap(namespace: str, device: str, mbit: float) -> None:
    shape = ["rate", f"{mbit:g}mbit", "burst", str(BURST), "latency", LATENCY]
    _permitted(["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf", *shape])


def _permitted(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, check=True, text=True)
    except FileNotFoundError as error:
        raise NotPermitted(f"{error.filename} is not installed (Debian: iproute2)") from None
    except subprocess.CalledProcessError as error:
        raise NotPermitted(f"{' '.join(command)}: {error.stderr.strip()}") from None


# -- the rate of one plain TCP stream over such a link --------------------------


def payload_rate(lab: Lab, length: int) -> float:
    """Return the bytes per second of one plain TCP stream of `length` bytes from host 0 to host 1."""
    receiver = lab.process(1, PROBE, "receive", lab.address(1))
    port = receiver.hear()["port"]
    sender = lab.process(0, PROBE, "send", lab.address(1), str(port), str(length))
    start = sender.hear()["start"]
    return length / float(receiver.hear()["end"] - start)


def _receive(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        print(json.dumps({"port": server.getsockname()[1]}), flush=True)
        with server.accept()[0] as connection:
            while connection.recv(1 << 20):
                pass
        print(json.dumps({"end": time.monotonic()}), flush=True)


def _send(address: str, port: str, length: str) -> None:
    with socket.create_connection((address, int(port))) as connection:
        print(json.dumps({"start": time.monotonic()}), flush=True)
        connection.sendall(bytes(int(length)))


if __name__ == "__main__":
    _receive(*sys.argv[2:]) if sys.argv[1] == "receive" else _send(*sys.argv[2:])
