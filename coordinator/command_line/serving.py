"""Start a coordinator on the real network: libp2p, HTTPS, the page, its model processes and the run's tasks."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder, lock_run
from echo2.coordinator.learner.ranks.launch import RankLayout, learner_process
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import FaultView
from echo2.coordinator.run import keys
from echo2.coordinator.run.former_identity import FORMER_DESCRIPTORS, answer_as, former_of
from echo2.coordinator.run.setup import Run, check_all_sizes
from echo2.coordinator.run.task_processes import hosted_all
from echo2.coordinator.settings.computing import Computing, computing_of
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.coordinator.training.model_processes import LearnerChild, Models, name_of, on_death, restarts
from echo2.coordinator.web.page_listener import WebLimits
from echo2.coordinator.web.pages import operator_page
from echo2.coordinator.web.site import ResponseCache, application, serve_web
from echo2.engines.process.process import HOST, EngineProcess
from echo2.engines.process.supervisor import Patience, SupervisedEngine
from echo2.engines.registry import TRANSFORMERS
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.limits.bandwidth import bandwidth, change_bandwidth
from echo2.p2p.limits.party import Parties, subnet_of
from echo2.p2p.limits.relay_quota import RelayLimits
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.limits.token_bucket import TokenBucket
from echo2.p2p.local_addresses import listenable
from echo2.p2p.network import AnyPeer, Network, Uplink
from echo2.runtime import descriptors, garbage
from echo2.runtime.files import writing
from echo2.runtime.stand_ins import or_stand_in, process_command
from echo2.runtime.units import MBIT, bytes_per_second, unix_milliseconds
from echo2.weights.store import Store

if TYPE_CHECKING:
    from echo2.coordinator.ray_scorers.remote_engine import RayCluster

KEPT_FAULTS = 100
"""Number of model process deaths that the page shows, the newest ones."""
MOST_FAULT = 1_000
"""Characters shown per death."""
THREAD_SWITCH_SECONDS = 0.001
"""The interpreter's thread switch interval, seconds. The event loop releases the GIL at every SQLite statement; at
Python's default of 5 ms a thread that builds the run view would delay it by that long each time."""

log = structlog.get_logger("coordinator")


def scorers_of(
    computing: Computing, died: Callable[[str], None], silence: float, env: Mapping[str, str] | None = None
) -> list[SupervisedEngine]:
    """Return the scorers. Their weights are float32 whatever nodes compute in: a second rounding would hide theirs.
    `died`: called with a description of each death of a process. `silence`: `scorer.silence_seconds`. `env`: further
    variables."""

    def scorer(name: str, device: str) -> SupervisedEngine:
        return SupervisedEngine(
            lambda: EngineProcess(
                name=name, threads=computing.threads, env=env, command=process_command("scorer", HOST)
            ),
            restarts(), on_death=on_death(name, died), patience=Patience(silence),
            device=device, dtype="float32", engine=TRANSFORMERS.name,
        )  # fmt: skip

    return [scorer(name_of(number), device) for number, device in enumerate(computing.scorer_devices, 1)]


def scorers_of_run(
    run: Run, computing: Computing, died: Callable[[str], None]
) -> tuple["RayCluster | None", list[SupervisedEngine]]:
    """Return the scorers of a run, and the cluster that has them, if they are Ray's. `died`: see `scorers_of`."""
    section = run.config.scorer
    if not section.ray:
        return None, scorers_of(computing, died, section.silence_seconds, keys.keyless(run.folder))
    from echo2.coordinator.ray_scorers.cluster_check import driver_environment
    from echo2.coordinator.ray_scorers.remote_engine import RayCluster, RemoteEngine

    place = run.folder.scorer / "ray"
    place.mkdir(parents=True, exist_ok=True)
    cluster = RayCluster(section.ray, place, driver_environment(os.environ, keys.keyless(run.folder)), restarts())

    def scorer(number: int, device: str) -> SupervisedEngine:
        name = name_of(number)
        return SupervisedEngine(
            lambda: RemoteEngine(cluster, name, run.id.hex(), number, device),
            restarts(), on_death=on_death(name, died), patience=Patience(section.silence_seconds),
            device=device, dtype="float32", engine=TRANSFORMERS.name,
        )  # fmt: skip

    return cluster, [scorer(number, device) for number, device in enumerate(section.ray_devices, 1)]


def ranks_of(section: LearnerSection) -> RankLayout:
    """Return the learner's processes, by the settings."""
    return RankLayout(section.ranks, section.hosts, section.rendezvous)


async def serve(run: Run) -> None:
    """Run one coordinator on libp2p with its model processes and its page, until cancelled."""
    from echo2.p2p.libp2p.threaded_network import PayloadRates, ThreadedPeer

    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    faults = list[FaultView]()
    section = run.config.learner
    computing = computing_of(section, run.config.scorer)
    log.info(computing.sentence())

    def died(fault: str) -> None:
        faults.append(FaultView(at=unix_milliseconds(), what=fault[:MOST_FAULT]))
        del faults[:-KEPT_FAULTS]

    learner = LearnerChild(
        lambda: learner_process(computing.threads, ranks=ranks_of(section), env=keys.keyless(run.folder)),
        restarts(), ranks_of(section).elsewhere, died,
    )  # fmt: skip
    cluster, scorers = scorers_of_run(run, computing, died)
    models = Models(learner, scorers, faults)
    reach = run.config.network
    uplink, downlink, relayed = (bandwidth(rate) for rate in _rates(run.config))
    relay = RelayLimits(rate=relayed) if reach.relay else None
    rates = PayloadRates(uplink, downlink)
    former = former_of(run, unix_milliseconds(), keys.passphrase())
    files = descriptors.raise_limit() - (former is not None) * FORMER_DESCRIPTORS
    limits, https_limits, web_limits = connection_limits(run.config, files)
    peer = ThreadedPeer(run.keys.network, listenable(reach.listen), rates=rates, relay=relay, limits=limits)
    network = with_https(peer, run, _LimitedUplink(peer, uplink), https_limits)
    with lock_run(run.folder), Store(run.folder.store) as store, Database.open(run.folder.database) as database:
        async with hosted_all(run.tasks, run.config.environment, died) as hosts:
            check_all_sizes(run, [host.facts for host in hosts])
            coordinator = Coordinator(
                run, network, models, store=store, database=database, hosts=hosts, parties=limits.parties
            )
            coordinator.settings.others.append(
                lambda before, config: change_limits((limits, https_limits, web_limits), config, files)
            )
            coordinator.settings.others.append(
                lambda before, config: _change_rates((uplink, downlink, relayed), _rates(config))
            )
            if former is not None:
                answering = partial(answer_as, former, run, coordinator.newest_head, coordinator.now, limits.parties)
                coordinator.beside.append(answering)
            coordinator.beside.append(garbage.run)
            try:
                async with _page_served(coordinator, run, web_limits, faults):
                    await coordinator.run()
            finally:
                await learner.child.stop()
                await asyncio.gather(*(scorer.stop() for scorer in scorers))
                if cluster is not None:
                    await cluster.stop()


@contextlib.asynccontextmanager
async def _page_served(
    coordinator: Coordinator, run: Run, limits: WebLimits, faults: list[FaultView]
) -> AsyncIterator[None]:
    """Serve the page of a run and its operator's page, during the block."""
    web, builder = run.config.web, coordinator.view_builder
    cache = ResponseCache(builder.current_state, time.monotonic)
    app = application(builder, host=web.host, names=web.names, cache=cache)
    site = await serve_web(app, web.host, web.port, limits)
    coordinator.page_refused = site.count_refusals
    private = None
    try:
        private = await operator_page.serve(run.folder, web, faults, cache)
        with _page_named(run.folder, status.address_of(web.model_copy(update={"port": site.port}))):
            yield
    finally:
        await site.stop()
        if private is not None:
            await private.stop()


@contextlib.contextmanager
def _page_named(folder: RunFolder, url: str) -> Iterator[None]:
    """Keep the page's address in a file of the run folder during the block: port 0 means any free port."""
    with writing(folder.page) as file:
        file.write(f"{url}\n".encode())
    log.info("page ready", url=url)
    try:
        yield
    finally:
        folder.page.unlink(missing_ok=True)


def connection_limits(config: CoordinatorConfig, files: int) -> tuple[PeerLimits, HttpsLimits, WebLimits]:
    """Return the connection limits of libp2p, HTTPS and the page, scaled down to `files` file descriptors."""
    https = config.https.connections if config.https.listen else 0
    wanted = (config.network.connections, https, config.web.connections)
    over_libp2p, over_https, with_page = descriptors.fit_connections(files, *wanted)
    parties = Parties(
        or_stand_in("subnets", subnet_of),
        proxies=config.network.trusted_proxies,
        private_is_one=config.network.private_parties == "one",
    )
    return (
        PeerLimits(over_libp2p, config.network.subnet_connections, parties),
        HttpsLimits(connections=over_https, per_visitor=config.https.address_connections, parties=parties),
        WebLimits(connections=with_page, per_visitor=config.web.address_connections, parties=parties),
    )


def change_limits(limits: tuple[PeerLimits, HttpsLimits, WebLimits], config: CoordinatorConfig, files: int) -> None:
    """Let the limits be those of other settings. Connections that are open stay. `files`: see `connection_limits`."""
    (peers, *clients), (newer, *of_clients) = limits, connection_limits(config, files)
    peers.connections, peers.per_subnet = newer.connections, newer.per_subnet
    for own, other in zip(clients, of_clients, strict=True):
        own.connections, own.per_visitor = other.connections, other.per_visitor


def _rates(config: CoordinatorConfig) -> tuple[float | None, float | None, float]:
    """Return the rates of the uplink, the downlink and the relay, bytes per second."""
    reach = config.network
    return bytes_per_second(reach.uplink), bytes_per_second(reach.downlink), reach.relay_rate * MBIT


def _change_rates(buckets: Sequence[TokenBucket], rates: Sequence[float | None]) -> None:
    for bucket, rate in zip(buckets, rates, strict=True):
        if bucket.rate != rate:
            change_bandwidth(bucket, rate)


class _LimitedUplink:
    """The queue at the uplink of `peer`, while `bucket` limits it: without a limit no piece goes through the peer's
    thread."""

    def __init__(self, peer: Uplink, bucket: TokenBucket) -> None:
        self._peer, self._bucket = peer, bucket

    async def await_uplink(self, peer: str, nbytes: int) -> None:
        """See `Uplink`."""
        if self._bucket.rate is not None:
            await self._peer.await_uplink(peer, nbytes)


def with_https(peer: AnyPeer, run: Run, uplink: Uplink | None = None, limits: HttpsLimits | None = None) -> Network:
    """Return the network of `peer`, with an HTTPS server if the settings enable it. `uplink`, `limits`: see
    `HttpsServer`. Raises `LocalFault`."""
    from echo2.p2p.https.certificate import server_context
    from echo2.p2p.https.combined_network import PeerAndHttps
    from echo2.p2p.https.server import HttpsServer

    if not run.config.https.listen:
        return Network.of(peer)
    context = server_context(run.folder.https_certificate, run.folder.https_key, keys.passphrase())
    listen = listenable(run.config.https.listen)
    server = HttpsServer(peer.peer_id, peer.handlers, listen, context, limits, uplink=uplink, run=run.id)
    return PeerAndHttps(peer, server).network
