"""Fixtures of the tests of the libp2p transport."""

import pytest

from echo2.p2p.libp2p.hole_punch import HolePuncher


@pytest.fixture
def no_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep relayed connections relayed: on loopback a direct connection would replace them at once."""

    async def upgrade(self: HolePuncher, peer: str) -> bool:
        return False

    monkeypatch.setattr(HolePuncher, "upgrade", upgrade)
