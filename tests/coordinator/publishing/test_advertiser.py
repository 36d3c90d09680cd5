"""The invite is spelled when the addresses change, not with each look at it; relays are those of the settings now."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.folder import make_run
from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.publishing.advertiser import RELAY_RETRY, Advertiser
from echo2.coordinator.run.setup import Run
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.errors import Unreachable
from echo2.p2p.peer.peer import Peer
from tests.support.clock import on_fake_clock, run_fake


class Moving(Peer):
    """A peer that is told where it listens."""

    at = "192.0.2.1"

    async def addresses(self) -> list[str]:
        return [f"/ip4/{self.at}/tcp/4310"]


@on_fake_clock
async def test_the_invite_follows_the_addresses_and_is_not_spelled_again_while_they_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator asks for it every second: it was most of what an idle one computed."""
    run = make_run(tmp_path / "run", now=1_700_000_000_000)
    spelled: list[str] = []
    real = Run.invite

    def counted(self: Run, *listening: Any) -> str:
        spelled.append(real(self, *listening))
        return spelled[-1]

    monkeypatch.setattr(Run, "invite", counted)
    network = Moving(MemoryNetwork(1).transport(run.peer_id), seed=0)
    advertiser = Advertiser(run, network, network, lambda now: [], lambda: 0)
    for _ in range(3):
        first = await advertiser.invite()
    network.at = "192.0.2.2"
    for _ in range(3):
        second = await advertiser.invite()
    assert spelled == [first, second]
    assert ["192.0.2.1" in "".join(Invite.from_text(one).addresses) for one in spelled] == [True, False]


class Reserving(Moving):
    """A peer whose relays answer, but for those in `away`. `slots`: those that it has."""

    away: tuple[str, ...] = ()

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.slots: list[str] = []
        self.reserve, self.release = self.take_slot, self.leave_slot

    async def take_slot(self, addresses: Sequence[str]) -> None:
        relay = addresses[0].rpartition("/")[2]
        if relay in self.away:
            raise Unreachable("it does not answer")
        self.slots.append(relay)

    async def leave_slot(self, relay: str) -> None:
        self.slots.remove(relay)


def test_a_running_coordinator_takes_other_relays_and_gives_up_those_no_longer_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", now=1_700_000_000_000)

    def name(*relays: str) -> None:
        named = tuple(f"/ip4/192.0.2.9/tcp/4101/p2p/{relay}" for relay in relays)
        run.config = run.config.model_copy(update={"network": run.config.network.model_copy(update={"relays": named})})

    async def main() -> None:
        network = Reserving(MemoryNetwork(1).transport(run.peer_id), seed=0)
        advertiser = Advertiser(run, network, network, lambda now: [], lambda: 0)
        name("first", "second")
        network.away = ("second",)
        reserving = asyncio.create_task(advertiser._reserve())
        await asyncio.sleep(1)
        assert network.slots == ["first"]
        network.away = ()
        await asyncio.sleep(RELAY_RETRY)
        assert network.slots == ["first", "second"]
        name("second", "third")
        await asyncio.sleep(RELAY_RETRY)
        assert network.slots == ["second", "third"]
        assert "third/p2p-circuit" in "".join(await advertiser.addresses())
        name()
        await asyncio.sleep(RELAY_RETRY)
        assert network.slots == []
        reserving.cancel()

    run_fake(main)
