"""The network of each kind of child, tried from within: by a child that connects wherever it can."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from echo2.runtime import network_trials
from echo2.runtime.child_budgets import BUDGETS
from tests.support.paths import ROOT

PREFACE = """
import errno, os, socket, subprocess, sys, threading
from echo2.runtime import child_network
def tried(connect, *arguments):
    try:
        connect(*arguments)
        return "open"
    except OSError as error:
        return errno.errorcode[error.errno]
def stream(host, port):
    socket.create_connection((host, int(port)), 5).close()
def listen(port):
    socket.create_server(("127.0.0.1", int(port))).close()
def own():
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream(*server.getsockname())
def at_once(port):
    with socket.socket() as one:
        one.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", int(port)))
def datagram(family=socket.AF_INET):
    socket.socket(family, socket.SOCK_DGRAM).close()
def other_protocol():
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()  # MPTCP, which rules of ports do not see
def unix():
    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()
port, other, outside = sys.argv[1:4]
"""


class Listeners:
    """Two listeners on loopback, and one on an address by which other machines reach this one, where it has one."""

    def __init__(self, stack: ExitStack) -> None:
        self.port, self.other = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)
        )
        self.outside = outside_address()
        self.elsewhere = stack.enter_context(socket.create_server((self.outside, self.port)))


def outside_address() -> str:
    """Return this machine's address towards others; a packet is not sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return probe.getsockname()[0]


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    with ExitStack() as stack:
        yield Listeners(stack)


def in_a_child(code: str, listeners: Listeners) -> list[str]:
    """Run code in a child that tries; return the lines that it prints. Skip where the system lacks the means."""
    arguments = [str(listeners.port), str(listeners.other), listeners.outside]
    done = subprocess.run(
        [sys.executable, "-c", PREFACE + code, *arguments],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    missing, *outcomes = done.stdout.splitlines()
    if missing:
        pytest.skip(missing)
    return outcomes


def test_without_limits_the_child_that_tries_gets_everywhere(listeners: Listeners) -> None:
    code = (
        "print()\nfor one in (port, other): print(tried(stream, '127.0.0.1', one))\nprint(tried(stream, outside, port))"
    )
    assert in_a_child(code, listeners) == ["open", "open", "open"]


def test_a_learner_or_scorer_reaches_nothing(listeners: Listeners) -> None:
    code = """
print(child_network.local())
print(tried(stream, "127.0.0.1", port), tried(stream, outside, port), tried(listen, 0), tried(datagram), tried(unix))
"""
    assert in_a_child(code, listeners) == ["EACCES EACCES EACCES EACCES open"]


def test_a_child_of_loopback_alone_reaches_itself_and_what_it_starts_and_nothing_of_the_machine(
    listeners: Listeners,
) -> None:
    code = """
print(child_network.loopback())
print(tried(own), tried(stream, "127.0.0.1", port), tried(stream, outside, port))
again = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
print(subprocess.run([sys.executable, "-c", again, outside, port], capture_output=True).returncode)
print(os.getuid(), child_network.loopback() or "still alone")
"""
    expected = ["open ECONNREFUSED ENETUNREACH", "1", f"{os.getuid()} still alone"]
    assert in_a_child(code, listeners) == expected


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_client_of_one_server_reaches_its_port_and_no_other_by_any_kind_of_socket(
    scheme: str, listeners: Listeners
) -> None:
    code = f"""
print(child_network.one_port("{scheme}://127.0.0.1:" + port))
print(tried(stream, "127.0.0.1", port), tried(stream, "127.0.0.1", other), tried(stream, outside, other))
print(tried(at_once, other), tried(listen, 0), tried(datagram), tried(datagram, socket.AF_INET6))
print(tried(other_protocol), tried(unix))
def later(): print(tried(stream, "127.0.0.1", other))
thread = threading.Thread(target=later); thread.start(); thread.join()
"""
    expected = ["open EACCES EACCES", "EPERM EACCES EACCES EACCES", "EACCES open", "EACCES"]
    assert in_a_child(code, listeners) == expected


def test_a_server_with_a_name_leaves_what_looks_names_up(listeners: Listeners) -> None:
    code = """
print(child_network.one_port("http://models.example:" + port))
print(tried(stream, "127.0.0.1", port), tried(stream, "127.0.0.1", other), tried(datagram))
print(tried(stream, "127.0.0.1", 53), tried(at_once, other), tried(other_protocol))
"""
    assert in_a_child(code, listeners) == ["open EACCES open", "ECONNREFUSED EPERM EACCES"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999", "file:///etc", "http://[::1"])
def test_an_address_that_names_no_port_is_told(address: str, listeners: Listeners) -> None:
    code = f"print()\nprint(child_network.one_port({address!r}))"
    assert in_a_child(code, listeners) == [f"{address} names no port"]


def test_ranks_reach_the_port_where_they_meet_and_free_ports_and_no_service(listeners: Listeners) -> None:
    """A service listens on a port below those that the system gives out."""
    with socket.socket() as service:
        low = next(port for port in range(20000, 30000) if service.connect_ex(("127.0.0.1", port)) != 0)
    code = f"""
print(child_network.meeting({low}))
print(tried(stream, "127.0.0.1", port), tried(listen, 0), tried(listen, {low}), tried(own))
print(tried(stream, "127.0.0.1", {low + 1}), tried(listen, {low + 1}), tried(stream, outside, {low + 1}))
"""
    assert in_a_child(code, listeners) == ["open open open open", "EACCES EACCES EACCES"]


def test_the_doctors_name_every_use_of_a_network_and_what_is_enforced() -> None:
    told = network_trials.trials()
    named = ", ".join(trial.children for trial in told).split(", ")
    assert sorted([*named, "environment"]) == sorted(BUDGETS)
    assert all(bool(trial.remedy) == trial.actual.startswith("not enforced here: ") for trial in told)


def test_what_a_system_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_trials, "_TRIALS", {"rendezvous": ("ports", "nothing_such()", "mend it")})
    (trial,) = network_trials.trials()
    assert trial == ("learner rank", "not enforced here: the trial ended with 1", "mend it")
