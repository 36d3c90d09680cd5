"""A fork is told to the coordinator and to peers within a bounded time, and one that peers tell is verified first."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

from echo2.node.rollouts.fork_notices import FORK_END_SECONDS, MOST_NOTIFIED_PEERS, ForkNotices
from echo2.node.rollouts.ledger_sources import LedgerSources
from echo2.node.run_state import NodeRunState
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.ledger_witness import LedgerFork, WitnessedHead, check_evidence
from echo2.p2p.envelope import seal
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root
from echo2.protocol.ledger_heads import MOST_SEALED, LedgerHead, LedgerRequest, LedgerResponse
from echo2.protocol.methods import LEDGER
from echo2.protocol.restored_logs import KIND, LogChain, LogRestored
from tests.support.clock import run_fake

RUN = b"r" * 32
KEY, THIEF = generate_key(), generate_key()
ROLE = RoleKeys(keys=[public_bytes(KEY)], threshold=1)
CHAIN = [
    Root(
        run=RUN, serial=0, roles=dict.fromkeys(("root", "policy", "channel", "ledger"), ROLE), expires=1 << 50, issued=0
    )
]
FIRST = LedgerHead(log=RUN, number=1, size=9, root=bytes(32), tip=bytes(32), issued=5)
OTHER_FIRST = msgspec.structs.replace(FIRST, root=b"o" * 32)
SECOND = msgspec.structs.replace(FIRST, number=2, size=12, issued=6)


def sealed(head: LedgerHead, log: bytes = RUN, key: object = KEY) -> bytes:
    return seal("ledgerhead", log, encode(head), key)  # type: ignore[arg-type]


def restored(size: int, key: object = KEY) -> bytes:
    """Return the document of a first restored log, of so many entries."""
    document = LogRestored(
        serial=1, old=RUN, number=1, size=size, root=bytes(32), restored=7, head=sealed(SECOND)
    )  # fmt: skip
    return seal(KIND, RUN, encode(document), key)  # type: ignore[arg-type]


FORK = LedgerFork(WitnessedHead(FIRST, sealed(FIRST)), WitnessedHead(OTHER_FIRST, sealed(OTHER_FIRST)))


class Neighbours:
    """Connected peers of a node. `told`: who was shown what. `silent`: they answer nothing."""

    peer_id = "me"

    def __init__(self, *names: str) -> None:
        self.names = names
        self.silent: set[str] = set()
        self.told: list[tuple[str, list[bytes]]] = []

    async def peers(self) -> list[str]:
        return list(self.names)

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        assert len(payload) <= LEDGER.limit
        if peer in self.silent:
            await anyio.sleep(timeout)
            raise Unreachable(peer)
        self.told.append((peer, LEDGER.request.decode(payload).fork))
        return LEDGER.answer.encode(LedgerResponse())


class Home:
    """A node that holds the first head. `looked_at`: how often it has verified something."""

    def __init__(self, folder: Path, *names: str, coordinator: str | None = "c") -> None:
        folder.mkdir(exist_ok=True)
        self.peers, self.coordinator, self.looked_at = Neighbours(*names), coordinator, 0
        self.store = LedgerStore(folder / "ledger.sqlite")
        if self.store.newest() is None:
            self.store.put(FORK.one, 0)
        self.run_state = NodeRunState(lambda: 0)
        sources = LedgerSources(self.peers, self.peers, lambda: self.coordinator, lambda peer: Origin(peer, peer), 1)  # type: ignore[arg-type]
        self.notices = ForkNotices(sources, self.store, self._check, self.run_state)

    def _check(self, shown: Sequence[bytes]) -> None:
        self.looked_at += 1
        check_evidence(shown, CHAIN, LogChain(RUN), self.store.like)

    async def tell(self) -> float:
        """Tell a fork; return the seconds that it took."""
        began = anyio.current_time()
        await self.notices.tell()
        return anyio.current_time() - began


@pytest.mark.parametrize(
    "heads",
    [
        [b"no envelope", b""],
        [sealed(FIRST), sealed(OTHER_FIRST, key=THIEF)],
        [sealed(OTHER_FIRST, b"x" * 32)],
        [sealed(FIRST), sealed(FIRST)],
        [sealed(FIRST), sealed(SECOND)],
        [restored(10)],
        [restored(10), restored(11, THIEF)],
        [],
    ],
    ids=["noise", "thief", "another run", "twice", "two that follow", "a log", "two logs, of a thief", "nothing"],
)
def test_what_proves_no_fork_is_forgotten(tmp_path: Path, heads: list[bytes]) -> None:
    home = Home(tmp_path)
    home.notices.take("a stranger", heads)
    assert home.store.fork() is None
    assert not home.notices.known.is_set()
    assert (home.run_state.withheld, home.notices.sentence()) == ("", "")


def test_a_head_that_contradicts_one_that_the_node_holds_is_enough(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.notices.take("a peer", [sealed(OTHER_FIRST)])
    assert "signed two histories" in home.notices.sentence()


def test_two_documents_of_one_restored_log_are_a_fork_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.notices.take("a peer", [restored(10), restored(11)])
    assert "signed two documents log.restored 1" in home.run_state.withheld
    assert home.store.fork_documents() == [restored(10), restored(11)]


def test_a_fork_that_a_peer_shows_is_kept_once_and_no_lease_is_requested_from_then_on(tmp_path: Path) -> None:
    home = Home(tmp_path)
    later = msgspec.structs.replace(SECOND, root=b"p" * 32)
    home.notices.take("a peer", [sealed(SECOND), sealed(later)])
    assert home.store.fork_documents() == [sealed(SECOND), sealed(later)]
    assert home.notices.known.is_set()
    assert "signed two histories" in home.run_state.withheld
    for _ in range(100):
        home.notices.take("a stranger", [sealed(OTHER_FIRST)])
    assert home.looked_at == 1, "nothing more is looked at"
    assert home.store.fork_documents() == [sealed(SECOND), sealed(later)]
    again = Home(tmp_path)
    assert again.notices.known.is_set()
    assert again.run_state.withheld == home.run_state.withheld


def test_the_coordinator_and_eight_peers_are_shown_both_heads_once(tmp_path: Path) -> None:
    home = Home(tmp_path, "c", *(f"peer {number}" for number in range(30)))
    home.notices.keep(FORK)
    assert run_fake(home.tell) < 1
    pair = [FORK.one.sealed, FORK.other.sealed]
    assert {tuple(heads) for _, heads in home.peers.told} == {tuple(pair)}
    told = [peer for peer, _ in home.peers.told]
    assert len(told) == len(set(told)) == 1 + MOST_NOTIFIED_PEERS
    assert "c" in told
    run_fake(home.tell)
    assert len(home.peers.told) == 1 + MOST_NOTIFIED_PEERS


@pytest.mark.parametrize("coordinator", [None, "c"])
def test_a_coordinator_out_of_reach_and_silent_peers_delay_the_end_by_a_bounded_time(
    tmp_path: Path, coordinator: str | None
) -> None:
    home = Home(tmp_path, "a", "b", coordinator=coordinator)
    home.peers.silent = {"a", "c"}
    home.notices.keep(FORK)
    assert run_fake(home.tell) == pytest.approx(FORK_END_SECONDS)
    assert [peer for peer, _ in home.peers.told] == ["b"]


def test_a_coordinator_that_comes_back_in_time_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path, coordinator=None)
    home.notices.keep(FORK)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(home.tell)
            await anyio.sleep(FORK_END_SECONDS / 2)
            home.coordinator = "c"

    run_fake(main)
    assert [peer for peer, _ in home.peers.told] == ["c"]


def test_the_longest_heads_fit_into_a_request() -> None:
    request = LedgerRequest(after=(1 << 53) - 1, fork=[bytes(MOST_SEALED)] * 2)
    assert len(LEDGER.request.encode(request)) < LEDGER.limit
