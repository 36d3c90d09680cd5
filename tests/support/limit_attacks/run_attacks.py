"""Attacks on the limits of a run: leases, requests, memory and disk, by the coordinator's own parts on a fake clock."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.accounts.ledger_service import LEDGER_REQUEST_BURST, LedgerService
from echo2.coordinator.leases.delivery_record import LAST_LEASES, PastLease, delivery_record
from echo2.coordinator.leases.expiry_budgets import EXPIRY_PAUSE_MS, FREE_OF_PARTY, ExpiryBudgets
from echo2.coordinator.leases.open_lease_limit import most_open
from echo2.coordinator.leases.retry_times import RetryTimes
from echo2.coordinator.nodes import node_registry
from echo2.coordinator.nodes.sightings import MOST_OTHERS, Sightings
from echo2.coordinator.publishing.foreign_heads import ASK_EVERY, HEAD_ANSWER_SECONDS, MOST_WAITING_CLAIMS, ForeignHeads
from echo2.coordinator.submissions import response_log
from echo2.coordinator.submissions.request_priority import BURST_REQUESTS, SOONEST_RETRY_MS, AdmissionQueue
from echo2.coordinator.submissions.response_log import ResponseLog
from echo2.coordinator.verdicts import token_storage
from echo2.coordinator.verdicts.token_storage import stored_bytes
from echo2.coordinator.verdicts.waiting_groups import DecodedGroups
from echo2.engines.engine import SampleScore
from echo2.ledger.standing import Rank
from echo2.p2p.discovery.peer_records import RecordIssuer, decode_own
from echo2.p2p.errors import Unreachable
from echo2.p2p.handlers import Handlers
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease
from echo2.protocol.ledger_heads import GrownHead, HeadReference, LedgerRequest, LedgerResponse
from echo2.protocol.requests import Refusal
from echo2.runtime import descriptors
from echo2.weights.store import Store
from tests.support.clock import run_fake
from tests.support.fleet import key, origin_of, request_lease
from tests.support.group_world import ALICE, BOB, HELLO, RUN, SPEC, T0, World, group, honest_scores
from tests.support.limit_attacks.attack import SLACK, Taken, lacking

NODE = Origin("node", "home", True)


@contextmanager
def opened_world(folder: Path, **options: Any) -> Iterator[World]:
    """Open a run in which Alice has accepted work."""
    world = World(folder, **options)
    try:
        world.accepted(ALICE)
        yield world
    finally:
        world.close()


def unanswered_requests(folder: Path, seconds: float) -> Taken:
    """Have more requests unanswered than a coordinator that is not overloaded has."""
    handlers, answers = Handlers(), asyncio.Event()

    async def slow(peer: str, request: bytes) -> bytes:
        await answers.wait()
        return b""

    async def main() -> Taken:
        clock = asyncio.get_running_loop().time
        handlers.serve("lease", slow, limit=100)
        queue = AdmissionQueue(lambda: int(1000 * clock()), lambda: handlers.count_unanswered(["lease"]))

        async def wait(party: str) -> int:
            return await queue.enter("lease", party) or 0

        before = await wait("eve")
        asks = [asyncio.create_task(handlers.answer("lease", f"eve {n}", b"")) for n in range(2 * BURST_REQUESTS)]
        await asyncio.sleep(0)
        during = max([await wait("eve") for _ in range(20)])
        refused = lacking(await queue.enter("submit", "home") is None, "a submission at once")
        refused += lacking(await wait("home") < 2 * SOONEST_RETRY_MS, "the next place in the order of retries")
        answers.set()
        await asyncio.gather(*asks)
        await asyncio.sleep(seconds)
        return Taken(before, during, await wait("eve"), refused)

    taken: Taken = run_fake(main)
    return taken


def retries(folder: Path, seconds: float) -> Taken:
    """Wait for room with a thousand keys of one party, and retry no more."""
    times = RetryTimes()
    alone = times.after(b"node", 0, party="home")
    for number in range(1_000):
        crowd = times.after(b"eve %d" % number, 0, party="eve")
    beside = times.after(b"node", 0, party="home")
    refused = lacking(beside <= 2 * alone, "a wait of one place more")
    later = int(1000 * seconds)
    times.on_grant(b"node", later)
    return Taken(alone, crowd, times.after(b"eve", later, party="eve"), refused)


def remembered_answers(folder: Path, seconds: float) -> Taken:
    """Have more answers remembered than are: a lease that was asked for twice is one all the same."""
    log = ResponseLog()
    with opened_world(folder) as world:
        ask = world.ask()
        first = world.group_service.lease(ALICE, ask, world.now)
        for number in range(2 * response_log.MOST_ANSWERS):
            log.keep(BOB, b"%d" % number, b"", bytes(100), world.now, world.now)
        for number in range(100):
            log.keep(BOB, b"long %d" % number, b"", bytes(1 << 20), world.now, world.now)
        again = world.group_service.lease(ALICE, ask, world.now)
    kept = len(log._known) / response_log.MOST_ANSWERS + log._bytes / response_log.MOST_ANSWER_BYTES
    return Taken(2, 2.0 + 1, kept, lacking(isinstance(first, bytes) and first == again, "the same lease again"))


def leases_of_new_keys(folder: Path, seconds: float) -> Taken:
    """Take leases with new keys of forty subnets, and return nothing."""
    with opened_world(folder, batch_groups=4, per_node=3) as world:
        for _ in range(3):
            world.accepted(ALICE)

        def ask(number: int) -> bool:
            return isinstance(request_lease(world, f"eve {number}", key("eve", number), f"8.8.{number}.0/24"), Lease)

        before = len(_open_leases(world))
        _known_lease(world)
        for number in range(40):
            ask(number)
        during = len(_open_leases(world))
        refused = lacking(_known_lease(world) is not None, "a lease")
        world.now += int(1000 * seconds)
        while world.group_service.tick(world.now):
            pass
        return Taken(before, during, len(_open_leases(world)), refused)


def _open_leases(world: World) -> list[bytes]:
    """Return the open leases of new keys."""
    query = "SELECT id FROM leases WHERE state = 'open' AND node != ?"
    return [row[0] for row in world.group_service.database.all(query, (ALICE,))]


def _known_lease(world: World) -> Lease | None:
    answer = request_lease(world, "home", ALICE, "home")
    return None if isinstance(answer, Refusal) else answer


def expiries_of_new_keys(folder: Path, seconds: float) -> Taken:
    """Let leases of new keys of one party expire without end."""
    with opened_world(folder) as world:
        budgets = ExpiryBudgets(world.group_service.database)

        def pause(connection: str) -> float:
            debts = [budgets.debt(holder, world.now) for holder in (connection.encode(), b"party 8.8.0.0/24")]
            return max((0 if debt is None else debt.wait) for debt in debts)

        for number in range(2 * FREE_OF_PARTY):
            budgets.on_end_of_new(origin_of(f"eve {number // 8}", "8.8.0.0/24"), world.now)
        during = pause("eve 0")
        neighbour = budgets.debt(ALICE, world.now)
        refused = lacking(neighbour is None, "a lease without a pause") + lacking(during >= EXPIRY_PAUSE_MS, "a bound")
        world.now += int(1000 * seconds)
        return Taken(0, during, pause("eve 0"), refused)


def leases_of_a_known_key(folder: Path, seconds: float) -> Taken:
    """Take leases with a key that worked, and return nothing any more."""
    worked = [PastLease(1_000 * number, 1_000 * number + 5_000, 1_000 * number + 60_000) for number in range(40, 0, -1)]
    silent = [PastLease(one.sent + 100_000, None, one.expires + 100_000) for one in worked[:LAST_LEASES]]

    def most(ended: list[PastLease], rank: Rank = "proven") -> int:
        return most_open(1, 256, rank, delivery_record(ended, 64), 1e9)

    refused = lacking(most(worked) > 4, "leases of a key that works, with some lost")
    refused += lacking(most([silent[0], *worked]) > 4, "leases of a key of which one did not come")
    return Taken(1, most(worked), most([*silent, *worked]), refused)


def refused_tokens(folder: Path, seconds: float) -> Taken:
    """Hand in groups that are refused, more bytes than a party may leave."""
    with (
        mock.patch.object(token_storage, "MOST_REFUSED", 50_000),
        opened_world(folder, spec=msgspec.structs.replace(SPEC, limit=1 << 17)) as world,
    ):

        def kept(party: str) -> float:
            query = "SELECT coalesce(sum(nbytes), 0) FROM refused_tokens WHERE party = ?"
            return float(world.group_service.database.value(query, (party,)))

        def hand_in(node: bytes, party: str) -> Lease:
            lease = request_lease(world, party, node, party)
            assert isinstance(lease, Lease), lease
            honest = group(lease)
            wrong = msgspec.structs.replace(honest.rollouts[0], logprobs=b"x" * 20_000)
            world.submit(msgspec.structs.replace(honest, rollouts=[wrong, *honest.rollouts[1:]]), node)
            return lease

        for _ in range(3):
            hand_in(BOB, "eve")
        during, lease = kept("eve"), hand_in(ALICE, "home")
        query = "SELECT payload NOT NULL FROM submissions WHERE lease = ?"
        refused = lacking(bool(world.group_service.database.value(query, (lease.id,))), "its refused group on disk")
        refused += lacking(during <= 50_000, "a bound")
        world.now += int(1000 * seconds)
        _forget(world)
        return Taken(0, during, kept("eve"), refused)


def _forget(world: World) -> None:
    service, at = world.group_service, world.group_service.progress
    assert at is not None
    while service.tick(world.now):
        pass
    while service.forget([], at.step, at.era, world.now):
        pass


def stored_rollouts(folder: Path, seconds: float) -> Taken:
    """Hand in groups that are refused, more bytes than a run stores."""
    most = 30_000
    with opened_world(folder, spec=msgspec.structs.replace(SPEC, limit=1 << 17)) as world:
        lease = world.lease(ALICE)
        world.submit(group(lease), ALICE)
        for _ in range(8):
            bad = world.lease(BOB)
            wrong = msgspec.structs.replace(group(bad).rollouts[0], logprobs=b"x" * 10_000)
            world.submit(msgspec.structs.replace(group(bad), rollouts=[wrong, *group(bad).rollouts[1:]]), BOB)
        during, service = stored_bytes(world.group_service.database), world.group_service
        world.now += int(1000 * seconds)
        while service.tokens.make_room(most, 0, 1, service.terms.staleness):
            pass
        waiting = [one.lease.id for one in service.list_undecided(10)]
        return Taken(most, during, stored_bytes(service.database), lacking(lease.id in waiting, "its waiting group"))


def stored_versions(folder: Path, seconds: float) -> Taken:
    """Have more bytes of versions stored than a store may keep. Only the operator publishes; others can cause none."""
    with Store(folder / "store") as store:
        for version in range(8):
            digest = blake3(b"%d" % version).digest()
            store.incoming(digest).write_bytes(bytes(1_000))
            store.put_payload(1, version, digest, store.incoming(digest))
        during = store.nbytes()
        store.collect([(1, 7)], 3_000)
        newest = {(file.era, file.version) for file in store._files("payloads/")}
        return Taken(3_000, during, store.nbytes(), lacking((1, 7) in newest, "the newest version"))


def keys_without_groups(folder: Path, seconds: float) -> Taken:
    """Say hello with more new keys than have rows."""
    most = 50
    with opened_world(folder) as world, mock.patch.object(node_registry, "MOST_WITHOUT_GROUPS", most):
        registry, database = world.group_service.registry, world.group_service.database
        registry.register(BOB, HELLO, None, T0)
        world.accepted(BOB)
        for number in range(3 * most):
            registry.register(key("eve", number), HELLO, None, T0 + 1 + number)
        kept = database.value("SELECT count(*) FROM nodes WHERE groups = 0")
        row = database.value("SELECT count(*) FROM nodes WHERE key = ?", (BOB,))
        return Taken(most, 3 * most, kept, lacking(row == 1, "its row"))


def remembered_nodes(folder: Path, seconds: float) -> Taken:
    """Be seen with more keys without work than are remembered."""
    seen, offered = Sightings(), 2 * MOST_OTHERS
    seen.meet(ALICE, 0, worked=True)
    for number in range(offered):
        seen.meet(key("eve", number), 1, worked=False)
    return Taken(MOST_OTHERS, offered, len(seen) - 1, lacking(seen.find(ALICE) is not None, "its sighting"))


def named_peers(folder: Path, seconds: float) -> Taken:
    """Say hello with as many keys of public subnets as a list of peers has places, and of one subnet with more."""

    def record(seed: int, host: str) -> Any:
        private = Ed25519PrivateKey.from_private_bytes(seed.to_bytes(32, "big"))
        name = peer_id(public_bytes(private))
        sealed = RecordIssuer(private, RUN).issue([f"/ip4/{host}/tcp/4310/p2p/{name}"], T0)
        return public_bytes(private), decode_own(sealed)

    with opened_world(folder) as world:
        registry = world.group_service.registry
        node, known = record(1, "9.9.9.9")
        registry.register(node, HELLO, known, T0)
        world.accepted(node)
        for number in range(200):
            host = f"8.8.{number}.1" if number < 100 else f"7.7.7.{number}"
            eve, told = record(100 + number, host)
            registry.register(eve, HELLO, told, T0 + number)
        listed = registry.records(T0 + 1_000)
        crowd = sum(one.addresses[0].startswith("/ip4/7.7.7.") for one in listed)
        refused = lacking(known in listed, "its place in the list") + lacking(crowd <= 2, "a bound of one subnet")
        return Taken(node_registry.MOST_NAMED_PEERS, 200, len(listed), refused)


def decoded_groups(folder: Path, seconds: float) -> Taken:
    """Hand in more groups than stand decoded in memory."""
    with opened_world(folder, batch_groups=100) as world:
        lease = world.lease(ALICE)
        world.submit(group(lease), ALICE)
        for _ in range(20):
            world.submit(group(world.lease(BOB)), BOB)
        waiting = world.group_service.list_undecided(100)
        cache = DecodedGroups(5_000)
        offered = sum(one.submission.nbytes + 2_000 for one in waiting)
        for one in waiting:
            cache.put(one)
        decided = [receipt.lease for receipt in world.decide_all()]
        return Taken(5_000, offered, cache._bytes, lacking(lease.id in decided, "a verdict"))


def appeals(folder: Path, seconds: float) -> Taken:
    """Appeal with a key without accepted work, and with one that has an appeal under way."""
    with opened_world(folder, batch_groups=100) as world:
        world.accepted(BOB)
        stranger = key("eve")

        def refused_lease(node: bytes) -> bytes:
            lease = world.lease(node)
            world.submit(group(lease), node)
            (waiting,) = world.group_service.list_undecided(10)
            margins = [0.0, 0.01, 0.0, 0.0]
            scores = [SampleScore(logprobs=one.logprobs, margins=margins) for one in honest_scores(waiting.submission)]
            assert world.decide(waiting, scores).verdict == "refused"
            return lease.id

        def appeal(node: bytes, lease: bytes) -> str:
            answer = world.group_service.reviews.appeal(node, lease, world.now)
            return answer.code if isinstance(answer, Refusal) else ""

        codes = [appeal(BOB, refused_lease(BOB)) for _ in range(3)]
        codes.append(appeal(stranger, refused_lease(stranger)))
        refused = lacking(codes == ["", "one-appeal", "one-appeal", "no-appeal"], f"a bound: {codes}")
        refused += lacking(appeal(ALICE, refused_lease(ALICE)) == "", "its appeal")
        query = "SELECT count(*) FROM reviews WHERE node = ? AND state = 'waiting'"
        return Taken(1, len(codes), world.group_service.database.value(query, (BOB,)), refused)


def foreign_claims(folder: Path, seconds: float) -> Taken:
    """Claim heads with more keys than may, and answer nothing when asked."""
    asked = list[str]()

    async def request(peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        asked.append(peer)
        await asyncio.sleep(timeout)
        raise Unreachable(peer)

    async def main() -> Taken:
        run: Any = SimpleNamespace(id=RUN, folder=SimpleNamespace(head=folder / "head"), chain=())
        database: Any = SimpleNamespace(value=lambda *query: None, fact=lambda name: None)
        rpc: Any = SimpleNamespace(request=request)
        heads = ForeignHeads(run, database, rpc, lambda why: None, lambda: T0, works=lambda origin: origin.is_known)
        for number in range(2 * MOST_WAITING_CLAIMS):
            heads.on_claim(Origin(f"eve {number}", "8.8.0.0/24"), HeadReference(9, bytes(32)))
        running = asyncio.create_task(heads.run())
        await asyncio.sleep(0.1)
        during = len(heads._others)
        heads.on_claim(NODE, HeadReference(9, bytes(32)))
        await asyncio.sleep(HEAD_ANSWER_SECONDS + ASK_EVERY + SLACK)
        refused = lacking("node" in asked, "the next question")
        await asyncio.sleep(seconds)
        running.cancel()
        return Taken(0, during, len(heads._others), refused)

    taken: Taken = run_fake(main)
    return taken


def ledger_requests(wanted: Callable[[], LedgerRequest], count: Callable[[LedgerResponse], int]) -> Any:
    """Return an attack by requests of the method `ledger`. `count`: counts what was answered beside heads."""

    async def main(seconds: float) -> Taken:
        clock, told = asyncio.get_running_loop().time, list[object]()
        heads: Any = SimpleNamespace(
            answer=lambda request: LedgerResponse(heads=[GrownHead(sealed=b"")], every=1),
            entry_numbers=lambda keys: [],
            proofs=lambda entries, size: [mock.sentinel.proof for _ in entries],
        )
        ends: Any = SimpleNamespace(proofs=lambda leases, size: [SimpleNamespace(entry=5) for _ in leases])

        async def durable() -> None:
            await asyncio.sleep(0)

        service = LedgerService(
            heads, ends, lambda peer: Origin(peer, peer, peer == "node"), lambda origin: origin.is_known, durable,
            clock, lambda peer, shown: told.append(peer), lambda origin, head: told.append(head),
        )  # fmt: skip

        async def answers(peer: str) -> int:
            return count(await service.answer(peer, wanted()))

        got = [await answers(f"eve {number % 8}") for number in range(20 * LEDGER_REQUEST_BURST)]
        during = got.count(0)
        refused = lacking(await answers("node") > 0, "proofs") + lacking(during > len(got) // 2, "a bound")
        await asyncio.sleep(seconds)
        return Taken(0, during, int(await answers("eve 0") == 0), refused)

    return lambda folder, seconds: run_fake(lambda: main(seconds))


PROOFS = ledger_requests(lambda: LedgerRequest(after=1, entries=[1], size=9), lambda answer: len(answer.proofs))
ENDS = ledger_requests(lambda: LedgerRequest(after=1, leases=[bytes(16)], size=9), lambda answer: len(answer.ends))


def open_files(folder: Path, seconds: float) -> Taken:
    """Set more connections than the system has descriptors: those of the daemon's own files are left."""
    most, wanted = 1_024 - descriptors.RESERVED_DESCRIPTORS, (1_024, 1_024, 256)
    fitted = descriptors.fit_connections(1_024, *wanted)
    return Taken(most, sum(wanted), sum(fitted), lacking(all(fitted), "a connection of each kind"))
