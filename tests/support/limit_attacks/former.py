"""The limits under which a former identity answers, as the coordinator sets them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from echo2.coordinator.run.former_identity import Former, answer_as
from echo2.p2p.identity import generate_key
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.subnets import PeerLimits


def limits_of_former(folder: Path, parties: Parties) -> PeerLimits:
    """Return the limits that a former identity of a run with these parties has over libp2p."""
    network = SimpleNamespace(former_listen=["/ip4/127.0.0.1/tcp/0"], trusted_proxies=[])
    https = SimpleNamespace(former_listen=[], listen=[])
    run: Any = SimpleNamespace(config=SimpleNamespace(network=network, https=https))
    with mock.patch("echo2.p2p.libp2p.threaded_network.ThreadedPeer") as peer:
        peer.return_value.run = mock.AsyncMock()
        asyncio.run(answer_as(Former(generate_key(), 1_000), run, lambda: None, lambda: 0, parties))
    limits: PeerLimits = peer.call_args.kwargs["limits"]
    return limits
