"""The invite is spelled when the addresses change, not with each look at it."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.folder import make_run
from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.publishing.advertiser import Advertiser
from echo2.coordinator.run.setup import Run
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.peer.peer import Peer
from tests.support.clock import on_fake_clock


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
