"""Bytes that a node makes the coordinator store, and for how long. Clock and groups are made up."""

import itertools
from pathlib import Path

import msgspec
import pytest

from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, Submission, VerdictsRequest
from echo2.protocol.requests import Hello, Refusal
from tests.support.group_world import ALICE, BOB, SPEC, T0, World, group
from tests.support.ledger_sums import check_sums

HELLO = Hello(protocols=(1, 1), software="echo2 1", name="a", engine="e", device="d", tasks=[], record=b"")
HOUR = 3_600_000
DAY = 24 * HOUR
MOST_REFUSED = 64 << 20
MOST_OF_A_GROUP = 10_000
LONG = 1 << 17
"""Most tokens of a rollout here."""
OF_A_LEASE = (
    "SELECT length(document) + length(sealed) FROM leases WHERE id = ?",
    "SELECT length(coalesce(payload, x'')) + length(coalesce(scores, x'')) + length(coalesce(received, x''))"
    " FROM submissions WHERE lease = ?",
    "SELECT length(payload) FROM evidence WHERE lease = ?",
    "SELECT length(receipt) FROM verdicts WHERE lease = ?",
    "SELECT length(coalesce(behaviour, x'')) FROM buffer WHERE lease = ?",
)


@pytest.fixture
def long_world(tmp_path: Path) -> World:
    """Open a run with a high token limit."""
    return World(tmp_path, spec=msgspec.structs.replace(SPEC, limit=LONG))


@pytest.fixture
def small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the refused tokens per party to 300 KiB."""
    monkeypatch.setattr("echo2.coordinator.verdicts.token_storage.MOST_REFUSED", 300 << 10)


def long_and_wrong(lease: Lease, kilobytes: int, filling: bytes = b"x") -> Submission:
    """Return a group that costs nothing to make, and is refused at receipt."""
    honest = group(lease)
    long = msgspec.structs.replace(honest.rollouts[0], logprobs=filling * (kilobytes << 10))
    return msgspec.structs.replace(honest, rollouts=[long, *honest.rollouts[1:]])


def kept(world: World, lease: bytes) -> int:
    """Count the bytes of a lease and its group in run.sqlite, without the ledger."""
    return sum(world.group_service.database.value(query, (lease,)) or 0 for query in OF_A_LEASE)


def a_day_later(world: World, drawn: list[bytes]) -> None:
    """Let the challenge window of all submissions pass, and the coordinator forget."""
    world.now += DAY + HOUR
    group_service, at = world.group_service, world.group_service.progress
    assert at is not None
    world.group_service.tick(world.now)
    while group_service.forget(drawn, at.step, at.era, world.now):
        pass


def test_after_a_day_a_group_costs_10_kB_whether_its_node_confirms_or_not(long_world: World) -> None:
    """On 439044d unconfirmed groups and evidence stay for ever: 1.3 MB and more per lease."""
    world = long_world
    accepted = world.accepted(ALICE).id
    bad = world.lease(BOB)
    world.refused(long_and_wrong(bad, 600), BOB)
    assert isinstance(world.group_service.submissions.submit(BOB, encode(long_and_wrong(bad, 700)), world.now), Refusal)
    assert kept(world, bad.id) > 1_300_000, "within the window a verdict can be run again"
    a_day_later(world, [accepted])
    assert [kept(world, lease) <= MOST_OF_A_GROUP for lease in (accepted, bad.id)] == [True, True]
    receipts = world.group_service.submissions.verdicts(BOB, VerdictsRequest(leases=[bad.id])).receipts
    assert receipts[0] is not None, "the receipt stays for its node"


@pytest.mark.slow
def test_of_refused_tokens_64_MB_per_party_stay_and_hashes_beyond(long_world: World) -> None:
    """On 439044d one key fills the disk: 72 groups of 1 MB are 72 MB, and so on."""
    world, leases = long_world, []
    for _ in range(72):
        lease = world.lease(BOB)
        world.refused(long_and_wrong(lease, 1024), BOB)
        leases.append(lease.id)
    nbytes = world.group_service.database.value("SELECT sum(length(payload)) FROM submissions")
    assert MOST_REFUSED - (2 << 20) <= nbytes <= MOST_REFUSED
    assert world.group_service.database.value("SELECT count(hash) FROM submissions") == 72
    same = encode(long_and_wrong(world.group_service.leases.find(leases[-1]).lease, 1024))  # type: ignore[union-attr]
    assert world.group_service.submissions.submit(BOB, same, world.now) == b"", "the same submission, the same answer"


@pytest.mark.usefixtures("small_share")
def test_other_bytes_under_a_known_lease_count_in_the_same_share(long_world: World) -> None:
    world = long_world
    for number in range(4):
        lease = world.lease(BOB)
        world.submit(group(lease), BOB)
        assert isinstance(
            world.group_service.submissions.submit(BOB, encode(long_and_wrong(lease, 100 + number)), world.now), Refusal
        )
    sizes = [
        size for (size,) in world.group_service.database.all("SELECT length(payload) FROM evidence ORDER BY rowid")
    ]
    assert [size > 100 << 10 for size in sizes] == [True, True, False, False]
    assert world.group_service.database.value("SELECT count(hash) FROM evidence") == 4


def test_groups_that_the_scorer_refuses_count_in_the_share_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo2.coordinator.verdicts.token_storage.MOST_REFUSED", 0)
    lease = world.lease(BOB)
    world.submit(group(lease), BOB)
    (undecided,) = world.group_service.list_undecided()
    world.group_service.refuse_unscorable(undecided, world.now)
    assert world.group_service.database.value("SELECT payload FROM submissions") is None


@pytest.mark.usefixtures("small_share")
def test_a_share_is_free_again_once_its_tokens_are_forgotten(long_world: World) -> None:
    world, stored = long_world, []
    for _ in range(3):
        lease = world.lease(BOB)
        world.refused(long_and_wrong(lease, 200), BOB)
        stored.append(
            world.group_service.database.value("SELECT payload FROM submissions WHERE lease = ?", (lease.id,))
        )
        if len(stored) == 2:
            a_day_later(world, [])
            assert world.group_service.database.all("SELECT * FROM refused_tokens") == []
    assert [payload is not None for payload in stored] == [True, False, True]


def test_a_lease_without_a_submission_leaves_nothing_but_its_entry(world: World) -> None:
    """On 439044d ends of leases are never deleted."""
    lease = world.lease(BOB)
    a_day_later(world, [])
    assert world.group_service.database.value("SELECT count(*) FROM leases WHERE id = ?", (lease.id,)) == 0
    a_day_later(world, [])
    assert world.group_service.ledger.verify().entries > 0
    late = world.group_service.submissions.submit(BOB, encode(group(lease)), world.now)
    assert late.code == "unknown-lease"


def test_other_bytes_that_come_for_a_forgotten_lease_are_not_kept(long_world: World) -> None:
    world = long_world
    lease = world.accepted(BOB)
    a_day_later(world, [lease.id])
    assert isinstance(
        world.group_service.submissions.submit(BOB, encode(long_and_wrong(lease, 100)), world.now), Refusal
    )
    assert kept(world, lease.id) <= MOST_OF_A_GROUP


def test_a_request_of_the_day_before_is_a_new_request(world: World) -> None:
    ask = world.ask()
    before = world.group_service.lease(ALICE, ask, world.now)
    lease = world.lease(BOB)
    a_day_later(world, [])
    assert isinstance(before, bytes)
    after = world.group_service.lease(ALICE, ask, world.now)
    assert isinstance(after, bytes)
    assert after not in (b"", before)
    assert world.group_service.leases.find(lease.id) is None


def test_tokens_that_may_still_be_drawn_wait_for_the_learner(world: World) -> None:
    waiting = world.accepted(ALICE).id
    a_day_later(world, [])
    assert world.group_service.database.value("SELECT payload FROM submissions WHERE lease = ?", (waiting,)) is not None
    world.accepted(BOB)
    assert next(one.id for one in world.group_service.draw(world.now) or []) == waiting
    a_day_later(world, [waiting])
    assert world.group_service.database.value("SELECT payload FROM submissions WHERE lease = ?", (waiting,)) is None


def test_a_key_without_groups_does_not_keep_a_row_for_ever(world: World) -> None:
    """On 439044d each free key that ever said hello stays in the table of nodes."""
    registry = world.group_service.registry
    free = [bytes([number]) * 32 for number in range(100, 150)]
    for node in (ALICE, BOB, *free):
        registry.register(node, HELLO, None, T0)
    world.accepted(ALICE)
    world.lease(BOB)
    for _ in range(9):
        a_day_later(world, [])
    assert [key for (key,) in world.group_service.database.all("SELECT key FROM nodes")] == [ALICE]
    assert world.group_service.ledger.verify().entries > 0


def bad_group(world: World, node: bytes) -> None:
    world.refused(group(world.lease(node), rollouts=[]), node)


def rows_about(world: World, node: bytes) -> dict[str, int]:
    """Count the rows about a key, the ledger's and its account left out."""
    of_lease = "SELECT id FROM leases WHERE node = ?"
    return {
        table: world.group_service.database.value(f"SELECT count(*) FROM {table} WHERE {which}", (node,))
        for table, which in (
            ("leases", "node = ?"), ("submissions", f"lease IN ({of_lease})"), ("verdicts", "node = ?"),
            ("evidence", f"lease IN ({of_lease})"), ("nodes", "key = ?"), ("sums", "node = ?"),
        )
    }  # fmt: skip


def test_refused_groups_of_a_key_without_accepted_work_leave_its_account_alone(world: World) -> None:
    """Before, each left some 3 kB for good, and the next key is free."""
    for node in (ALICE, BOB):
        world.group_service.registry.register(node, HELLO, None, T0)
    world.accepted(ALICE)
    bad = world.lease(BOB)
    world.refused(group(bad, rollouts=[]), BOB)
    world.group_service.submissions.submit(BOB, encode(group(bad)), world.now)
    bad_group(world, ALICE)
    assert min(rows_about(world, BOB).values()) == 1
    a_day_later(world, [])
    assert min(rows_about(world, BOB).values()) == 1, "the receipt stays for its node for a week"
    for _ in range(7):
        a_day_later(world, [])
    assert set(rows_about(world, BOB).values()) == {0}
    late = world.group_service.submissions.submit(BOB, encode(group(bad, rollouts=[])), world.now)
    assert late.code == "unknown-lease"
    kept = rows_about(world, ALICE)
    assert (kept["leases"], kept["verdicts"], kept["nodes"]) == (2, 2, 1), "a key with accepted work keeps its receipts"
    assert world.group_service.accounts.account(BOB).groups == 1
    check_sums(world.group_service.database)
    assert world.group_service.ledger.verify().entries > 0


def test_strikes_of_free_keys_are_forgotten_after_a_month(world: World) -> None:
    for number in range(40):
        bad_group(world, bytes([number + 10]) * 32)
    count = "SELECT count(*) FROM strikes"
    assert world.group_service.database.value(count) == 40
    a_day_later(world, [])
    assert world.group_service.database.value(count) == 40
    world.now += 30 * DAY
    a_day_later(world, [])
    assert world.group_service.database.value(count) == 0


@pytest.mark.slow
def test_strikes_of_free_keys_are_bounded_and_replace_none_of_a_key_with_accepted_work(world: World) -> None:
    """Keys without accepted work had a row for 30 days each; now 1,024 rows stay for all of them."""
    world.accepted(ALICE)
    bad_group(world, ALICE)
    keys = [number.to_bytes(32, "big") for number in range(1_100)]
    for key in keys:
        bad_group(world, key)
        world.now += 100
    while world.group_service.strikes.forget(world.now):
        pass
    assert world.group_service.database.value("SELECT count(*) FROM strikes") == 1_024 + 1
    assert world.group_service.strikes.of(ALICE) == 1
    assert [world.group_service.strikes.of(key) for key in (keys[75], keys[76], keys[-1])] == [0, 1, 1], (
        "the newest stay"
    )


@pytest.mark.slow
def test_memory_of_nodes_is_bounded_and_fresh_keys_replace_no_node_with_accepted_work(world: World) -> None:
    """On 439044d every key that sent a request stays in memory, also without a hello."""
    registry = world.group_service.registry
    registry.register(ALICE, HELLO, None, T0)
    world.accepted(ALICE)
    registry.on_contact(ALICE, T0 + 1)
    for number in range(12_000):
        stranger = number.to_bytes(32, "big")
        registry.on_contact(stranger, T0 + 2)
    assert sum(map(len, remembered(registry))) <= 20, "a key that never said hello leaves nothing"
    with world.group_service.database.transaction():
        for number in range(6_000):
            registry.register(number.to_bytes(32, "big"), HELLO, None, T0 + 3)
    assert max(map(len, remembered(registry))) <= 5_000
    assert registry.here_since(ALICE) == T0


def remembered(registry: object) -> list[dict[bytes, object]]:
    """Return the mappings in an object, and those in the objects that it refers to."""
    inside = itertools.chain(vars(registry).values(), vars(getattr(registry, "sightings", object)).values())
    return [one for one in inside if isinstance(one, dict)]


LONG_AFTER = 3_600_000
"""Milliseconds, longer than any lease here lasts."""


def test_long_groups_are_forgotten_a_few_megabytes_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause of the event loop above 50 ms. On 439044d one call deletes the tokens of all groups, of any length."""
    leases = [world.accepted().id for _ in range(5)]
    (size,) = {len(data) for (data,) in world.group_service.database.all("SELECT payload FROM submissions")}
    monkeypatch.setattr("echo2.coordinator.verdicts.token_storage.SLICE_BYTES", 2 * size)
    forgotten = [world.group_service.tokens.forget(leases, 0, 1, 2, world.now + LONG_AFTER) for _ in range(4)]
    assert forgotten == [2, 2, 1, 0]


def test_tokens_are_dropped_only_when_a_durable_checkpoint_covers_their_draw(world: World) -> None:
    first, _ = world.accepted(), world.accepted()
    world.group_service.draw(world.now)
    world.now += 1000

    def dropped(covered: list[bytes], step: int = 0) -> int:
        return world.group_service.tokens.forget(covered, step, 1, 2, world.now + LONG_AFTER)

    assert dropped([]) == 0, "drawn, but by no durable checkpoint"
    assert world.group_service.tokens.forget([first.id], 0, 1, 2, world.now) == 0, "the challenge window is open"
    assert dropped([first.id]) == 1
    world.reopen(drawn=[first.id])
    assert world.group_service.count_buffered() == 1
    assert dropped([first.id], step=3) == 1, "the checkpoint is past its staleness limit"
    assert world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[first.id])).receipts[0] is not None
