"""The start of a daemon from its settings: lock, key, invite, network, signals. The daemon's real network and engine
are built here alone; tests pass others."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.engines.devices.system_gpus import system_gpus
from echo2.node.config import NodeConfig
from echo2.node.control.log_view import LOG_FILE
from echo2.node.errors import BadConfig, NoUsableDevice
from echo2.node.home import invite_of_joined_run, lock_home, run_folder
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import load_or_create_key, peer_id, public_bytes
from echo2.p2p.local_addresses import listenable
from echo2.p2p.network import Network
from echo2.runtime import descriptors
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.files import writing
from echo2.runtime.logs import set_up_logging, to_file, to_stream
from echo2.runtime.network_disk import SHARED_HOME, disk_of
from echo2.runtime.priority import give_way
from echo2.runtime.units import MBIT, bytes_per_second, unix_milliseconds

if TYPE_CHECKING:
    from echo2.engines.process.candidates import Candidate
    from echo2.node.daemon import NodeDaemon
    from echo2.node.engine_choice import EngineChoice

_log = structlog.get_logger("node")
CTRL_C: Final = "Ctrl-C; once more ends at once"
NODE_LOG_BYTES: Final = 2 << 20
"""Bytes of one file of the log: some days of a node that works."""


def start(config: NodeConfig, *, once: bool, passphrase: str | None) -> Exit:
    """Run a node until it ends; return its exit code. Raises `NodeError`."""
    set_up_log(config)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(Exit.OK))  # a container's first process has no default action
    descriptors.raise_limit()
    descriptors.watch()
    with lock_home(config.home):
        invite = invite_of(config)
        set_up_log(config, config.home / LOG_FILE)
        if (shared := disk_of(config.home)).is_shared:
            _log.warning("home on a shared disk", disk=shared.describe(), advice=SHARED_HOME)
        give_way("normal" if config.priority == "normal" else "low")
        try:
            return asyncio.run(_run(config, invite, passphrase, once=once))
        except LocalFault as error:
            raise BadConfig(str(error)) from error


def set_up_log(config: NodeConfig, file: Path | None = None) -> None:
    """Log to stderr, and to `file`, which the caller alone writes. Libraries and the `p2p` package log from
    level warning on; at level debug `p2p` logs everything, and libp2p with it (p2p/libp2p/upstream_logs.py)."""
    libraries = config.log if config.log == "error" else "warning"
    handlers = [to_stream(json_lines=config.json_logs)]
    if file is not None:
        with contextlib.suppress(LocalFault):  # stderr has each line as well
            handlers.append(to_file(file, NODE_LOG_BYTES))
    set_up_logging(*handlers, level=config.log, libraries=libraries)
    logging.getLogger("p2p").setLevel(logging.DEBUG if config.log == "debug" else logging.NOTSET)


def invite_of(config: NodeConfig) -> Invite:
    """Return the invite given, else that of the run joined last, else one discovered on the local network. Store it, so
    that `echo2-node run` finds it. Raises `BadConfig`."""
    if config.invite is not None:
        invite = _invite_given(config.invite, config)
    elif (config.home / "invite").exists() and config.accept_fingerprint is None:
        return invite_of_joined_run(config.home)
    else:
        invite = _found_nearby(config)
    with writing(config.home / "invite") as file:
        file.write(invite.to_text().encode())
    return invite


def _invite_given(text: str, config: NodeConfig) -> Invite:
    """Return the invite that a text is, or that the page of this address serves. Raises `BadConfig`, `TryLater`."""
    from echo2.node.links.invite_page import invite_of_page, page_of

    page = page_of(text)
    if page is not None:
        return invite_of_page(page, config.home, config.accept_fingerprint)
    try:
        return Invite.from_text(text)
    except LocalFault as error:
        raise BadConfig(str(error)) from error


def network_of(config: NodeConfig, invite: Invite, key: Ed25519PrivateKey) -> Network:
    """Return a network over the routes that the owner admits and the invite offers. Raises `BadConfig`."""
    from echo2.p2p.https.client import HttpsClient
    from echo2.p2p.https.failover import FailoverNetwork
    from echo2.p2p.libp2p.threaded_network import PayloadRates, ThreadedPeer
    from echo2.p2p.limits.relay_quota import RelayLimits
    from echo2.p2p.limits.subnets import PeerLimits

    direct = https = None
    if config.via != ("https",):
        uplink, downlink = (bytes_per_second(rate) for rate in (config.uplink, config.downlink))
        relay = RelayLimits(rate=config.relay_rate * MBIT) if config.relay else None
        listen = listenable(config.listen)
        seed = secrets.randbits(64)
        (connections,) = descriptors.fit_connections(descriptors.raise_limit(), config.connections)
        limits = PeerLimits(connections, config.subnet_connections)
        rates = PayloadRates(uplink, downlink)
        direct = ThreadedPeer(key, listen=listen, seed=seed, rates=rates, relay=relay, limits=limits)
    if "https" in config.via and invite.https_key is not None:
        https = HttpsClient(peer_id(public_bytes(key)), invite.https_key)
    if direct is None and https is None:
        raise BadConfig("the invite offers no HTTPS: ask the operator for a new one, or set via to other routes")
    return FailoverNetwork(direct, https, routes=config.via).network


def _found_nearby(config: NodeConfig) -> Invite:
    """Return the invite of the run with the accepted fingerprint, discovered on the local network. The invite of the
    run joined last needs no discovery if its fingerprint is the accepted one, because a service restarts often."""
    from echo2.node.links.local_discovery import confirm_invite, normal

    if config.accept_fingerprint is not None and (config.home / "invite").exists():
        last = invite_of_joined_run(config.home)
        if normal(last.fingerprint) == normal(config.accept_fingerprint):
            return last
    return confirm_invite(config.accept_fingerprint)


async def _run(config: NodeConfig, invite: Invite, passphrase: str | None, *, once: bool) -> Exit:
    from echo2.node.engine_child import engine_child
    from echo2.node.engine_devices import with_devices

    key = load_or_create_key(config.home / "node.key", passphrase)
    config = await with_devices(config, partial(engine_child, config))
    signals = _Signals()
    with signals.handling():
        cards: Sequence[Candidate] | None = None
        while True:
            daemon, choice = await _daemon_of(config, invite, key, cards, once=once)
            try:
                ended = await signals.run(daemon)
            except NoUsableDevice as error:
                if choice is None or signals.interrupted:
                    raise
                if (following := choice.next_after(str(error))) is None:
                    if daemon.several:
                        choice.forget()
                    raise
                _log.error("the engine is given up, the next one computes", reason=str(error), next=following.text)
                cards = None
                continue
            if not daemon.begins_again or choice is None:
                return Exit.INTERRUPTED if signals.interrupted else ended
            cards = choice.cards


async def _daemon_of(
    config: NodeConfig, invite: Invite, key: Ed25519PrivateKey, cards: "Sequence[Candidate] | None", *, once: bool
) -> "tuple[NodeDaemon, EngineChoice | None]":
    """Return a daemon over a network of its own, and what chooses its engine. `cards`: what it computes with; None:
    what an earlier start kept."""
    from echo2.node.daemon import NodeDaemon
    from echo2.node.engine_child import engine_child
    from echo2.node.engine_choice import EngineChoice
    from echo2.node.engine_devices import spread_over
    from echo2.node.home_form import check_form
    from echo2.node.owner.device_sensors import DeviceSensors
    from echo2.node.owner.owner_probes import probes_of
    from echo2.node.run_context import RunContext
    from echo2.node.versions.base_copies import BaseCopies

    check_form(run_folder(config.home, invite.run))
    context = RunContext.open(config.home, invite, key, local=unix_milliseconds, seed=secrets.randbits(64))
    network = network_of(config, invite, key)
    choice = EngineChoice(partial(engine_child, config), config, context.folder) if config.gpu == "auto" else None
    runspec = context.trust_store.trusted.runspec
    if cards is None and choice is not None and runspec is not None and not once and len(system_gpus()) > 1:
        cards = await choice.spread(runspec.value)
    config = spread_over(config, cards or ())
    sensors = await asyncio.to_thread(DeviceSensors)
    owner = await asyncio.to_thread(probes_of, config.yield_to, config.yield_when)
    daemon = NodeDaemon(
        config, context, network, partial(engine_child, config), once=once, choice=choice, owner=owner, sensors=sensors,
        copies=BaseCopies(config.base, os.environ),
    )  # fmt: skip
    return daemon, choice


class _Signals:
    """What the signals of this process do to the daemon that runs. `interrupted`: whether Ctrl-C came."""

    def __init__(self) -> None:
        self._daemon: NodeDaemon | None = None
        self.interrupted = False

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Take the signals within the block."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._on_system_end)
        try:
            yield
        finally:
            # The daemon has closed everything: a later signal would only change the exit code.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    async def run(self, daemon: "NodeDaemon") -> Exit:
        """Run a daemon, which gets the signals; one that came before is passed on at once."""
        self._daemon = daemon
        if self.interrupted:
            daemon.interrupt(CTRL_C)
        return await daemon.run()

    def _on_interrupt(self) -> None:
        self.interrupted = True
        if self._daemon is not None:
            self._daemon.interrupt(CTRL_C)

    def _on_system_end(self) -> None:
        from echo2.node.daemon import END_SECONDS

        if self._daemon is None:
            os._exit(Exit.OK)
        end = threading.Timer(END_SECONDS, os._exit, [Exit.OK])  # threads that read or write a disk end no sooner
        end.daemon = True
        end.start()
        self._daemon.end_soon("the system asks to end")
