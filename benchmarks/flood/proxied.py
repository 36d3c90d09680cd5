"""Measure attackers that stop halfway behind a TCP proxy: one that sends PROXY headers, and one that sends none.

The run and its attackers are those of benchmarks/flood/stopped.py, but for a public address that the run tells; honest
nodes, newcomers and attackers all come through the proxy. With headers each is the subnet that it comes from. Without
them all seem private: what strangers hold then is held by one party, and keys with accepted work are parties of their
own, once the coordinator has named them, which it does every 30 s.
"""

from typing import Any, Final, NamedTuple

from benchmarks.flood.stopped import BATCH, EXPIRY, LEASES, NODES, Stopped, attacked, calm_of
from benchmarks.flood.wire import BODIES, GREETINGS, OVER_HTTPS, REQUESTS
from benchmarks.flood.wires import SECTIONS, wired_run
from echo2.coordinator.metrics import status

HEADERS: Final = {"a proxy that sends headers": 2, "a proxy that sends none": 0}
ATTACKS: Final = (REQUESTS, GREETINGS, BODIES)
QUICK: Final = (REQUESTS, BODIES)
NAMED: Final = 45.0
"""Seconds until the parties with accepted work are named."""
TOLD: Final = "/ip4/127.1.1.1/tcp/4310"
"""An address that counts as public here (benchmarks/attacks/foreign_loopback.py)."""


class Proxied(NamedTuple):
    """Results behind one proxy. `stopped`: by attack. `hidden`: what `status` says of hidden strangers."""

    stopped: dict[str, Stopped]
    hidden: str


def measured(seconds: float, quick: bool) -> dict[str, Proxied]:
    """Measure behind each proxy, for `seconds` each."""
    return {name: _behind(header, seconds, QUICK if quick else ATTACKS) for name, header in HEADERS.items()}


def _behind(header: int, seconds: float, attacks: tuple[str, ...]) -> Proxied:
    network: dict[str, Any] = {"advertise": [TOLD], "trusted_proxies": ["127.0.0.1"] if header else []}
    work = {**SECTIONS["run"], "batch_groups": BATCH}
    with wired_run(NODES, header, leases=LEASES, network=network, run=work) as run:
        before = calm_of(run, seconds, after=NAMED)
        stopped = {name: attacked(run, name, seconds) for name in attacks}
        after = calm_of(run, seconds, after=EXPIRY)
        stopped = {name: one.beside(before, after, name in OVER_HTTPS) for name, one in stopped.items()}
        state = status.decode(status.fetch(f"http://127.0.0.1:{run.at.page}"))
        return Proxied(stopped, state.links.hidden)
