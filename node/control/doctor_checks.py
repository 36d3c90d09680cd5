"""The verdicts of `echo2-node doctor`, with the exact fix of each fault. Pure: node/control/doctor_probes.py measures,
this module judges.

1. A row is {check, found, wanted, remedy, verdict, exit}; `remedy` is empty where no action is needed.
2. A `bad` row keeps this node from working. A `poor` one does not: one route of several fails, for example.
3. The exit code is that of the first bad row, 0 without any.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from echo2.p2p.discovery.messages import ReachableResponse
from echo2.p2p.multiaddr import address_of
from echo2.runtime.exit_codes import Exit
from echo2.runtime.figures import apart, figure, number_of
from echo2.runtime.network_disk import SHARED_HOME, Disk
from echo2.runtime.network_trials import NetworkTrial

Verdict = Literal["good", "poor", "bad"]
_DRIVER: Final = "install the GPU's driver (for NVIDIA, nvidia-smi lists it then)"
_NAME_REMEDY: Final = (
    "this machine's name servers do not know the name: try it in a browser, or on another network, and else ask the "
    "operator whether it is right"
)
_PROXY_REMEDY: Final = (
    "correct the variable HTTPS_PROXY (or ALL_PROXY), or remove it; to pass it by for the coordinator only, name its "
    "host in NO_PROXY"
)
CLOCK_SKEW_SECONDS: Final = 10.0
"""Seconds by which this machine's clock may differ from the coordinator's."""
HEAD_AGE: Final = 75.0
"""Largest age of the newest Head, seconds: the coordinator signs one every 60 s."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. `exit`: the command's exit code if this row is bad."""

    check: str
    actual: str = msgspec.field(name="found")
    wanted: str
    remedy: str = ""
    verdict: Verdict = "good"
    exit: int = 0


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to dial one address of the coordinator. `seconds`: its duration, None if it failed. `trouble`: why it
    failed."""

    route: str = msgspec.field(name="way")
    address: str
    seconds: float | None = None
    trouble: str = ""


class HostTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A host of the coordinator, tried below the handshake. `known`: IP addresses of its name, if it has a known one.
    `name_fault`: reason why its name is not known; `tcp_fault`: why no connection came about."""

    host: str
    port: int
    known: str = ""
    name_fault: str = ""
    tcp_fault: str = ""

    @property
    def place(self) -> str:
        return f"{self.host} port {self.port}"


def _row(check: str, actual: str, wanted: str, remedy: str = "", exit: int = 0) -> Check:
    """Return a row: good without a remedy; with one bad if it has an exit code, else poor."""
    verdict: Verdict = "good" if not remedy else "bad" if exit else "poor"
    return Check(check=check, actual=actual, wanted=wanted, remedy=remedy, verdict=verdict, exit=exit if remedy else 0)


def installation(described: str, rivals: Sequence[str]) -> Check:
    """Check that no other distribution has files of the package echo2. `described`: what installed this one, and from
    what. `rivals`: the others' names."""
    remedy = f"uninstall {', '.join(rivals)}, and install this one again: both write the folder echo2" if rivals else ""
    return _row("installation", described, "one echo2", remedy, Exit.CONFIG)


def disk(home: str, free: int, allowed: float) -> Check:
    """Check the free disk space. `free`: bytes. `allowed`: GB, the setting `disk`."""
    gigabytes = free / 1e9
    fine, some = gigabytes >= allowed, gigabytes >= 2.0
    remedy = (
        f"free space on the disk of {home}, or set a smaller one: disk = {max(1, int(gigabytes * 0.8))} in node.toml"
    )
    present, wanted = (f"{one} GB" for one in apart(gigabytes, allowed))
    code = 0 if some else Exit.TEMPORARY
    return _row("disk", f"{present} free", f"{wanted} (setting disk)", "" if fine else remedy, code)


def file_system(disk: Disk) -> Check:
    """Check that the home lies on a disk of this machine."""
    return _row("file system", disk.describe(), "a disk of this machine", SHARED_HOME if disk.is_shared else "")


def other_form(sentence: str) -> Check:
    """Return the row of a home in which another build made the files of a run. `sentence`: what to do."""
    return _row("run's files", "of another build", "of this build", sentence, Exit.CONFIG)


def priority(described: str) -> Check:
    """State what this node gives way to, in words."""
    return _row("priority", described, "as the setting priority says")


def occasion(name: str, source: str, *, seen: bool, wanted: bool) -> Check:
    """State whether an occasion of the owner's can be seen here. `source`: how; or why not. `wanted`: whether the
    setting `yield_when` names it."""
    blind = wanted and not seen and name != "battery"
    return _row(
        f"yields on {name}",
        f"seen: {source}" if seen else f"cannot be seen here: {source}",
        "seen (setting yield_when)" if wanted else "not asked for",
        f"install what is missing, or leave {name} out of yield_when" if blind else "",
    )


def unwritable(home: str, trouble: object, code: int) -> Check:
    """Return the row of a home in which no file can be written. `trouble`: the reason, with its fix. `code`: the exit
    code."""
    return _row("home", f"{home} cannot be written", "a folder to write to", str(trouble), code)


def networks(trials: Iterable[NetworkTrial]) -> list[Check]:
    """Check what keeps each kind of child from the network."""
    return [
        _row(f"network of {trial.children}", trial.actual, "enforced by the system", trial.remedy) for trial in trials
    ]


def engine_memory(shared: str, system: str) -> Check:
    """State whose memory other processes of this user can read. `shared`: engines whose processes share the memory of
    devices. `system`: this system's name."""
    open_ones = f"open: {shared}, whose processes may share the memory of devices" if shared else "closed"
    actual = open_ones if system == "linux" else f"open: {system} has nothing that closes it"
    return _row("memory of engines", actual, "closed to other processes of this user")


def gpu(asked: str, present: str, fault: str) -> Check:
    """Check a device. `asked`: the setting `gpu`, or one of the devices that it names. `present`: the GPUs that the
    system reports, or empty. `fault`: why none of them can be used, with the command that helps; empty where nothing is
    known."""
    wanted = {"auto": "a GPU", "all": "all GPUs"}.get(asked, f"GPU {asked}" if asked.isdecimal() else asked)
    needed = asked not in ("auto", "cpu")
    if asked == "cpu" or (present and not fault):
        return _row("gpu", present or "not used", wanted)
    if present:
        remedy = fault
    elif needed:
        remedy = f"{_DRIVER}; or use --gpu auto"
    else:
        remedy = f"optional: the CPU works, slowly; if this machine has a GPU, {_DRIVER}"
    actual = present or ("none" if needed else "none: the CPU is used")
    return _row("gpu", actual, wanted, remedy, Exit.NO_DEVICE if needed else 0)


def device_limits(name: str, gpus: int) -> Check:
    """Return the row of limits of a GPU that is not there. `gpus`: number of those that the system shows."""
    remedy = f"the system shows {number_of(gpus, 'GPU')}, numbered from 0: correct the name in node.toml"
    return _row("device limits", f"[devices.{name}]", "a device of this machine", remedy)


def engine(asked: str, installed: list[str], fault: str, code: int) -> Check:
    """Check the engine. `asked`: the setting `engine`. `installed`: the engines that are installed. `fault`: why the
    one that is asked for cannot be used, with the command that helps; empty where nothing is known. `code`: the exit
    code then."""
    wanted = "an engine that is installed" if asked == "auto" else asked
    return _row("engine", ", ".join(installed) or "none", wanted, fault, code)


def threads(asked: int | str, number: int) -> Check:
    """State the threads of each engine. `asked`: the setting `threads`."""
    return _row("threads", str(number), str(asked))


def server(name: str, actual: str, wanted: str, remedy: str) -> Check:
    """State one requirement of the server of the engine server. `remedy`: empty where it is met."""
    return _row(name, actual, wanted, remedy, Exit.NO_DEVICE)


def ip6(present: bool, addresses: list[str]) -> Check:
    """Report this machine's IPv6 addresses. `present`: whether IPv6 works here."""
    addresses_shown = ", ".join(addresses[:2]) or ("of this machine only" if present else "none")
    return _row("IPv6", addresses_shown, "optional")


def port(listen: list[str], taken: str) -> Check:
    """Check the ports to listen on. `taken`: why one of them is not available; empty if all are."""
    actual = taken or ", ".join(listen) or "nowhere"
    remedy = "stop what uses that port, or choose another: --listen /ip4/0.0.0.0/tcp/4001" if taken else ""
    return _row("listening", actual, "the ports of the setting listen", remedy, Exit.CONFIG)


def names(tried: Sequence[HostTrial]) -> Check:
    """Check that the system knows the names in an invite."""
    wanted = "every name is known"
    known = dict.fromkeys(f"{one.host} is {one.known}" for one in tried if one.known)
    faults = dict.fromkeys(f"{one.host}: {one.name_fault}" for one in tried if one.name_fault)
    if not faults:
        actual = "; ".join(known) or "none is needed: the invite has IP addresses"
        return _row("names", actual, wanted)
    return _row("names", "; ".join(faults), wanted, _NAME_REMEDY)


def tcp(tried: Sequence[HostTrial]) -> Check:
    """Check that TCP connections come about, wherever an address is known."""
    wanted = "each port accepts a connection"
    known = [one for one in tried if not one.name_fault]
    faults = [one for one in known if one.tcp_fault]
    if not faults:
        actual = ", ".join(one.place for one in known) or "not tried: no address is known"
        return _row("tcp", actual, wanted)
    return _row("tcp", "; ".join(f"{one.place}: {one.tcp_fault}" for one in faults), wanted, _tcp_remedy(faults))


def proxy(place: str, fault: str) -> Check:
    """Check the proxy that the environment names for HTTPS. `place`: its host and port. `fault`: why it cannot be used;
    empty: it takes connections."""
    actual = f"{place}: {fault}" if fault else place
    return _row("proxy", actual, "it takes connections", _PROXY_REMEDY if fault else "")


def routes(attempts: list[Attempt], tried: Sequence[HostTrial] = (), proxy_fault: str = "") -> list[Check]:
    """Return one row per route, and one for the coordinator, which is bad only if every route fails. `tried`: the hosts
    of their addresses. `proxy_fault`: why the proxy on the way of HTTPS cannot be used; empty: it can, or there is
    none."""
    trials: dict[tuple[str, int | None], HostTrial] = {(one.host, one.port): one for one in tried}
    rows = []
    successful = [attempt for attempt in attempts if attempt.seconds is not None]
    for route in ("direct", "relay", "https"):
        dialled = [attempt for attempt in attempts if attempt.route == route]
        if not dialled:
            rows.append(_row(route, "the invite names no such address", "at least one route"))
            continue
        best = min((one for one in dialled if one.seconds is not None), key=lambda one: one.seconds or 0, default=None)
        if best is not None:
            rows.append(_row(route, f"{best.address} in {figure(best.seconds or 0.0)} s", "an answer"))
        else:
            remedy = _PROXY_REMEDY if proxy_fault and route == "https" else _remedy(route, dialled, trials)
            rows.append(_row(route, dialled[0].trouble, "an answer", remedy))
    outcome = f"reached: {', '.join(dict.fromkeys(one.route for one in successful))}" if successful else "not reached"
    remedy = "ask the operator whether it runs, and for a new invite; then allow the addresses above in the firewall"
    if trials and all(one.name_fault for one in trials.values()):
        remedy = _NAME_REMEDY
    if proxy_fault and all(attempt.route == "https" for attempt in attempts):
        remedy = _PROXY_REMEDY
    remedy = "" if successful else remedy
    return [*rows, _row("coordinator", outcome, "at least one route", remedy, Exit.UNREACHABLE)]


def clock(issued: int | None, now: int) -> Check:
    """Check this machine's clock. `issued`: the time in the newest Head, by the coordinator's clock; None: no Head was
    received. `now`: the time by this machine's clock. Both in milliseconds."""
    wanted = f"within {CLOCK_SKEW_SECONDS:g} s of the coordinator's"
    if issued is None:
        return _row("clock", "not known: no Head was heard", wanted)
    age = (now - issued) / 1000
    if -CLOCK_SKEW_SECONDS <= age <= HEAD_AGE + CLOCK_SKEW_SECONDS:
        return _row("clock", "agrees with the newest Head", wanted)
    off = f"{figure(-age)} s behind" if age < 0 else f"{figure(age - HEAD_AGE)} s ahead, or the coordinator has stopped"
    remedy = "set the clock: sudo timedatectl set-ntp true (Linux), sudo sntp -sS time.apple.com (macOS)"
    return _row("clock", off, wanted, remedy, Exit.TEMPORARY)


def reachable(answer: ReachableResponse | None, ports: list[int], relay: str | None) -> Check:
    """Check whether peers can dial this node. `answer`: the coordinator's, None if it gave none. `relay`: None if a
    relay granted a reservation, else the reason why none did."""
    wanted = "an open port, or a relay"
    if answer is None or answer.observed is None:
        return _row("incoming", "not known: no coordinator could be asked to dial back", wanted)
    if answer.ports:
        return _row("incoming", f"directly at {answer.observed}, port {answer.ports[0]}", wanted)
    number = ports[0] if ports else 4001
    forward = (
        f"forward TCP port {number} of your router to this machine, allow it in its firewall "
        f"(sudo ufw allow {number}/tcp), and fix it: --listen /ip4/0.0.0.0/tcp/{number}"
    )
    if relay is None:
        outcome = f"no port answers at {answer.observed}; a relay accepts this node"
        return _row("incoming", outcome, wanted, f"optional, for speed: {forward}")
    outcome = f"no port answers at {answer.observed}, and no relay: {relay}"
    return _row("incoming", outcome, wanted, forward)


def no_invite() -> Check:
    """Return the row of a diagnosis without an invite."""
    remedy = "echo2-node doctor INVITE, or join a run first; echo2-node discover looks on the local network"
    return _row("invite", "none", "one", remedy)


def exit_code(rows: list[Check]) -> int:
    """Return the exit code of the first bad row, 0 without any."""
    return next((row.exit for row in rows if row.verdict == "bad"), Exit.OK)


def table(rows: list[Check]) -> list[str]:
    """Return lines for people: the rows in columns, then the remedies."""
    mark = {"good": "ok", "poor": "poor", "bad": "BAD"}
    width = max(len(row.check) for row in rows)
    lines = [f"{mark[row.verdict]:<5}{row.check:<{width}}  {row.actual}  (wanted: {row.wanted})" for row in rows]
    return [*lines, *dict.fromkeys(f"-> {row.check}: {row.remedy}" for row in rows if row.remedy)]


def _remedy(route: str, dialled: list[Attempt], trials: Mapping[tuple[str, int | None], HostTrial]) -> str:
    """Return the fix of a route: for the name, for TCP, or for what answers there, whichever comes first."""
    places = ", ".join(dict.fromkeys(_place(one.address) for one in dialled))
    if route == "relay":
        return f"ask the operator whether the relay at {places} runs"
    of_route = [trials.get((address_of(one.address).host, address_of(one.address).port)) for one in dialled]
    known = [one for one in of_route if one is not None]
    if known and all(one.name_fault for one in known):
        return _NAME_REMEDY
    if faults := [one for one in known if one.tcp_fault]:
        return _tcp_remedy(faults)
    if known:
        return f"{places} takes connections, and is no coordinator of this run: ask the operator for a new invite"
    return f"allow outgoing TCP to {places} in the firewall; if it is allowed, ask the operator to open that port there"


def _tcp_remedy(faults: Sequence[HostTrial]) -> str:
    places = ", ".join(dict.fromkeys(one.place for one in faults))
    return f"allow outgoing TCP to {places} in the firewall; if it is allowed, ask the operator to open that port there"


def _place(address: str) -> str:
    parsed = address_of(address)
    return f"{parsed.host} port {parsed.port}" if parsed.port is not None else address
