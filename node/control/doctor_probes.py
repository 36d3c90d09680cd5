"""The measurements of `echo2-node doctor`: short-lived peers, no work, no torch. They change no file of the home.

Every attempt has a time limit, so that all of them end within about a minute however the network fails. Each peer has a
temporary key: the node's identity is not disclosed.
"""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import ipaddress
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar, get_args
from urllib.parse import urlsplit

from msgspec import structs

from echo2.engines import registry
from echo2.engines.devices.devices import SINGLE_DEVICE_KINDS
from echo2.engines.devices.gpu_remedies import foreseen
from echo2.engines.devices.system_gpus import system_gpus
from echo2.engines.engine import EngineError
from echo2.engines.server import requirements
from echo2.engines.server.address import client_of
from echo2.engines.server.variables import KEY, VARIABLE
from echo2.node.config import NodeConfig
from echo2.node.control import doctor_checks, payment_probe
from echo2.node.control.doctor_checks import Attempt, Check, HostTrial
from echo2.node.engine_child import engine_threads
from echo2.node.engine_devices import check_engine
from echo2.node.errors import BadConfig
from echo2.node.home import run_folder
from echo2.node.home_form import check_form
from echo2.node.owner import owner_probes
from echo2.node.owner.owner_rules import Occasion
from echo2.p2p.discovery.dial_back import ports_of
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.messages import ReachableRequest
from echo2.p2p.discovery.peer_records import is_dialable_of_operator
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import P2PError
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.environment_proxy import proxy_to
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.local_addresses import listenable, machine_addresses
from echo2.p2p.multiaddr import address_of, peer_of, route_of
from echo2.p2p.network import Host, Links, Rpc
from echo2.p2p.wire_types import decode
from echo2.protocol.methods import HEAD, REACHABLE
from echo2.protocol.versions import Head, HeadRequest
from echo2.runtime import network_trials, priority
from echo2.runtime.child_budgets import seen_by_all
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.installation import RunsUninstalled, read_installation
from echo2.runtime.network_disk import disk_of
from echo2.runtime.units import unix_milliseconds

SomeHost = TypeVar("SomeHost", bound=Host)
PROBE_SECONDS: Final = 10.0
"""Seconds for one attempt."""
AT_ONCE: Final = 8
"""Addresses dialled at the same time."""


async def examine(config: NodeConfig, invite: Invite | None, *, running: bool) -> list[Check]:
    """Run every check. `running`: whether a daemon of this home runs; it uses the ports, so these are not
    tested."""
    rows = [
        doctor_checks.installation(*_installation()),
        doctor_checks.disk(str(config.home), shutil.disk_usage(_existing(config.home)).free, config.disk),
        doctor_checks.file_system(disk_of(config.home)),
        *_stored_run(config, invite),
        *(await asyncio.to_thread(_server, config.server) if config.engine == "server" else _engine_and_gpus(config)),
        doctor_checks.priority(priority.describe(config.priority)),
        *await asyncio.to_thread(_occasions, config.yield_when),
        *doctor_checks.networks(await asyncio.to_thread(network_trials.trials, registry.engine_names())),
        doctor_checks.engine_memory(seen_by_all(registry.engine_names()), sys.platform),
        doctor_checks.ip6(bool(listenable(["/ip6/::/tcp/0"])), _ip6_addresses()),
    ]
    return rows + await _network(config, invite, running=running)


def _stored_run(config: NodeConfig, invite: Invite | None) -> list[Check]:
    """Examine what an earlier start stored of the run."""
    try:
        if invite is not None:
            check_form(run_folder(config.home, invite.run))
    except BadConfig as error:
        return [doctor_checks.other_form(str(error))]
    return []


def _occasions(wanted: Sequence[Occasion]) -> list[Check]:
    probes = owner_probes.probes_of((), get_args(Occasion))
    return [
        doctor_checks.occasion(one.rule, one.source, seen=one.look is not None, wanted=one.rule in wanted)
        for one in probes
    ]


def _installation() -> tuple[str, list[str]]:
    """Return what installed this echo2, and the other distributions that write into its folder."""
    owners = importlib.metadata.packages_distributions().get("echo2", [])
    rivals = sorted({name for name in owners if name != "echo2"})
    try:
        return read_installation().describe(), rivals
    except RunsUninstalled as error:
        return str(error), rivals


def _server(address: str | None) -> list[Check]:
    """Examine the server of the engine server: one row per requirement."""
    try:
        client = client_of({VARIABLE: address or "", KEY: os.environ.get(KEY, "")}, patience=PROBE_SECONDS)
    except EngineError as error:
        return [doctor_checks.server("server", "none", "a server of vLLM", str(error))]
    try:
        return [doctor_checks.server(*row) for row in requirements.examine(client, None)]
    finally:
        client.close()


def _engine_and_gpus(config: NodeConfig) -> list[Check]:
    fault, code = "", Exit.OK
    try:
        check_engine(config)
        registry.choose(config.engine)
    except BadConfig as error:
        fault, code = str(error), error.exit
    except registry.UnknownEngine as error:
        fault, code = str(error), Exit.NO_DEVICE
    return [
        doctor_checks.engine(config.engine, registry.installed_engines(), fault, code),
        doctor_checks.threads(config.threads, engine_threads(config)),
        *_gpus(config.gpu, config.devices),
    ]


def _gpus(asked: str, limited: Iterable[str]) -> list[Check]:
    """Examine the devices of the setting `gpu`, one row each, and those of the setting `devices`."""
    gpus = system_gpus()
    torch = importlib.metadata.version("torch") if importlib.util.find_spec("torch") is not None else ""
    fault = foreseen(gpus, torch, not registry.LLAMACPP.missing())
    present = ", ".join(gpu.text for gpu in gpus)
    rows = []
    for device in asked.split(","):
        beyond = (
            f"there is no GPU {_number(device)}: the system shows {len(gpus)}, numbered from 0"
            if gpus and _number(device) >= len(gpus)
            else ""
        )
        rows.append(doctor_checks.gpu(device, present, beyond or fault))
    absent = [name for name in limited if name not in SINGLE_DEVICE_KINDS and _number(name) >= len(gpus)]
    return rows + [doctor_checks.device_limits(name, len(gpus)) for name in absent]


def _number(device: str) -> int:
    """Return the number of a GPU, 0 where none is named."""
    number = device if device.isdecimal() else device.partition(":")[2]
    return int(number or 0)


async def _network(config: NodeConfig, invite: Invite | None, *, running: bool) -> list[Check]:
    listen = [] if running else listenable(config.listen)
    taken = ""
    try:
        async with _up(ThreadedPeer(generate_key(), listen)):
            pass
    except LocalFault as fault:
        taken, listen = str(fault), []
    rows = [] if running else [doctor_checks.port(listenable(config.listen), taken)]
    if invite is None:
        return [*rows, doctor_checks.no_invite()]
    tried = await _host_trials(invite)
    attempts = await _attempts(invite)
    place, why = await _proxy(invite)
    rows += [doctor_checks.proxy(place, why)] if place else []
    rows += [doctor_checks.names(tried), doctor_checks.tcp(tried), *doctor_checks.routes(attempts, tried, why)]
    successful = [one.address for one in attempts if one.seconds is not None]
    over_libp2p = [address for address in successful if route_of(address) != "https"]
    async with _up(ThreadedPeer(generate_key(), listen)) as network, _https(invite) as https:
        asked: ThreadedPeer | HttpsClient | None = network if over_libp2p else https
        if asked is not None and successful:
            peer = await asked.dial(over_libp2p or successful)
            rows.append(doctor_checks.clock(await _head(asked, peer), unix_milliseconds()))
            rows.append(await payment_probe.ask(asked, peer, invite, unix_milliseconds(), patience=PROBE_SECONDS))
        if not running:
            rows.append(await _incoming(network, [one for one in over_libp2p if route_of(one) == "direct"]))
    return rows


@contextlib.asynccontextmanager
async def _up(network: SomeHost) -> AsyncIterator[SomeHost]:
    """Run a network during the `with` block. Raises `LocalFault`."""
    task = asyncio.create_task(network.run())
    try:
        await network.ready()
        yield network
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


@contextlib.asynccontextmanager
async def _https(invite: Invite) -> AsyncIterator[HttpsClient | None]:
    if invite.https_key is None:
        yield None
        return
    async with _up(HttpsClient("doctor", invite.https_key)) as https:
        yield https


async def _host_trials(invite: Invite) -> list[HostTrial]:
    """Try each host of the invite by its name and by TCP, as the system does both. A host behind a proxy of the
    environment is the proxy's to find."""
    hosts = dict[tuple[str, int], None]()
    for address in map(address_of, filter(is_dialable_of_operator, invite.addresses)):
        url = address.https_url
        if address.port is not None and (url is None or not _has_proxy(url)):
            hosts[address.host, address.port] = None
    return list(await asyncio.gather(*(_host_trial(host, port) for host, port in hosts)))


async def _proxy(invite: Invite) -> tuple[str, str]:
    """Return the place of the proxy on the way to the invite's HTTPS, empty without one, and why it cannot be used."""
    for url in filter(None, (address_of(address).https_url for address in invite.addresses)):
        try:
            named = proxy_to(url)
        except P2PError as error:
            return "the environment's proxy", str(error)
        if named is not None:
            parts = urlsplit(named)
            trial = await _host_trial(parts.hostname or "", parts.port or 80)
            return trial.place, trial.name_fault or trial.tcp_fault
    return "", ""


async def _host_trial(host: str, port: int) -> HostTrial:
    trial = HostTrial(host=host, port=port)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            places = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        return structs.replace(trial, name_fault=_reason(error))
    if (known := ", ".join(dict.fromkeys(str(place[0]) for *_, place in places))) != host:
        trial = structs.replace(trial, known=known)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        return structs.replace(trial, tcp_fault=_reason(error))
    writer.close()
    return trial


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and (error.errno or 0) > 0:  # asyncio's own words repeat the address
        return os.strerror(error.errno or 0)
    return getattr(error, "strerror", None) or str(error) or f"no answer within {PROBE_SECONDS:g} s"


def _has_proxy(url: str) -> bool:
    try:
        return proxy_to(url) is not None
    except P2PError:
        return True


async def _attempts(invite: Invite) -> list[Attempt]:
    """Dial every address of the invite, each from a peer of its own: an open connection would be reused for the
    next address."""
    few = asyncio.Semaphore(AT_ONCE)

    async def attempt(address: str) -> Attempt:
        if not is_dialable_of_operator(address):
            trouble = "nodes dial an IP address or a name at port 443, or from 1024 on, and nothing else"
            return Attempt(route=route_of(address), address=address, trouble=trouble)
        async with few:
            if route_of(address) != "https":
                async with _up(ThreadedPeer(generate_key(), [])) as network:
                    return await _attempt(network, address)
            async with _https(invite) as https:
                if https is None:
                    return Attempt(route="https", address=address, trouble="the invite names no key of its HTTPS")
                return await _attempt(https, address)

    return list(await asyncio.gather(*map(attempt, invite.addresses)))


async def _attempt(links: Links, address: str) -> Attempt:
    began, route = time.monotonic(), route_of(address)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await links.dial([address])
    except (P2PError, TimeoutError) as error:
        return Attempt(route=route, address=address, trouble=str(error) or f"no answer within {PROBE_SECONDS:g} s")
    return Attempt(route=route, address=address, seconds=time.monotonic() - began)


async def _head(rpc: Rpc, peer: str) -> int | None:
    """Return the time in the coordinator's newest Head, unverified; None if the coordinator has none or does not
    answer."""
    try:
        answer = await HEAD.ask(rpc, peer, HeadRequest(), timeout=PROBE_SECONDS)
        return decode(decode_unverified(answer.head).payload, Head).issued if answer.head is not None else None
    except P2PError:
        return None


async def _incoming(network: ThreadedPeer, direct: list[str]) -> Check:
    ports = ports_of(await network.addresses())
    if not direct:
        return doctor_checks.reachable(None, ports, None)
    peer = peer_of(direct[0])
    try:
        answer = await REACHABLE.ask(network, peer, ReachableRequest(ports=ports), timeout=PROBE_SECONDS)
    except P2PError:
        return doctor_checks.reachable(None, ports, None)
    trouble = None
    if not answer.ports:
        try:
            await network.reserve(direct)
        except P2PError as error:
            trouble = str(error)
    return doctor_checks.reachable(answer, ports, trouble)


def _existing(path: Path) -> Path:
    """Return `path`, or the nearest parent folder that exists."""
    return next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())


def _ip6_addresses() -> list[str]:
    return [one for one in machine_addresses() if ":" in one and not ipaddress.ip_address(one).is_loopback]
