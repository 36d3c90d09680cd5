"""Attacks that aim the nodes of a run at somebody else: computed on a clock of their own, with the node's own code.

1. The dialled machines never answer, and a node tries again each second: no node is as eager.
2. A row is held if no system service is dialled, and a third party gets no more connections from one node than the
   limits of p2p/limits/dial_backoff.py allow.
"""

from collections.abc import Sequence
from typing import Any, Final

import anyio
import trio.testing

from benchmarks.attacks.attack import AttackFinding
from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.discovery.messages import PeerRecord
from echo2.p2p.discovery.operator_addresses import SPREAD_SECONDS, OperatorAddresses
from echo2.p2p.envelope import seal
from echo2.p2p.errors import P2PError, Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.limits.dial_backoff import FAILURE_EACH, FAILURES, OPERATOR_FAILURES, OPERATOR_HASTE
from echo2.p2p.multiaddr import ROUTES, address_of
from echo2.p2p.wire_types import encode

SECONDS: Final = 600
RECORDS_EACH_SECOND: Final = 8
FORMS: Final = ("/ip4/8.8.8.8", "/ip4/8.8.8.{0}", "/dns4/n{0}.victim.example", "/ip4/10.0.0.{0}")
"""The third party: ports of a machine, machines of a subnet, names of one wildcard, machines of a private network."""


class _Links:
    """A network in which nobody answers. `dialled`: seconds and address of each dial."""

    peer_id = "node"

    def __init__(self) -> None:
        self.dialled: list[tuple[float, str]] = []

    async def peers(self) -> list[str]:
        return []

    async def dial(self, addresses: Sequence[str]) -> str:
        self.dialled += [(anyio.current_time(), address) for address in addresses]
        raise Unreachable(addresses[0])


def by_operator(quick: bool) -> AttackFinding:
    """Let a Head name 16 addresses of a third party, system services among them."""
    bound = OPERATOR_FAILURES + SECONDS * OPERATOR_HASTE / FAILURE_EACH
    counts, services, first = list[int](), 0, list[float]()
    for number, form in enumerate(FORMS):
        links = _Links()
        _on_own_clock(_follow_head, links, form, number)
        counts.append(len(links.dialled))
        services += sum((address_of(address).port or 0) < 1024 for _, address in links.dialled)
        first += [at for at, _ in links.dialled[:1]]
    prevented = max(counts) <= bound and not services and len(set(first)) == len(first)
    note = (
        f"at most {max(counts)} connections of one node in {SECONDS // 60} minutes, bound {bound:g}; {services} to "
        f"system services; the first after up to {SPREAD_SECONDS:g} s"
    )
    return AttackFinding(tried=sum(counts), prevented=prevented, note=note)


async def _follow_head(links: _Links, form: str, number: int) -> None:
    named = list[str]()
    addresses = OperatorAddresses(links, bytes([number]) * 32, ROUTES, lambda: named)  # type: ignore[arg-type]
    addresses.candidates()
    named += [f"{form.format(n)}/tcp/{port}/p2p/c" for n, port in enumerate(_PORTS)]
    while anyio.current_time() < SECONDS:
        for address in addresses.candidates():
            try:
                await addresses.dial(address)
            except P2PError:
                continue
        await anyio.sleep(1)


_PORTS: Final = (25, 22, 80, *range(4310, 4323))


def by_records(quick: bool) -> AttackFinding:
    """Let free keys name relays in their records: by names of one wildcard, and by machines of one subnet."""
    bound = FAILURES + SECONDS / FAILURE_EACH
    by_names, by_subnet = _Links(), _Links()
    _on_own_clock(_follow_records, by_names, "/dns4/n{0}.victim.example", quick)
    _on_own_clock(_follow_records, by_subnet, "/ip4/8.8.8.{0}", quick)
    note = (
        f"{len(by_names.dialled)} dials in {SECONDS // 60} minutes by names, {len(by_subnet.dialled)} by addresses of "
        f"a subnet, bound {bound:g}"
    )
    prevented = not by_names.dialled and len(by_subnet.dialled) <= bound
    return AttackFinding(tried=2 * SECONDS * RECORDS_EACH_SECOND, prevented=prevented, note=note)


async def _follow_records(links: _Links, form: str, quick: bool) -> None:
    run, relay = bytes(32), peer_id(public_bytes(generate_key()))
    dialer, keys = PeerDialer(links, run, lambda: 0), [generate_key() for _ in range(16 if quick else 64)]  # type: ignore[arg-type]
    number = 0
    while anyio.current_time() < SECONDS:
        for _ in range(RECORDS_EACH_SECOND):
            key, number = keys[number % len(keys)], number + 1
            end = f"/tcp/4310/p2p/{relay}/p2p-circuit/p2p/{peer_id(public_bytes(key))}"
            record = PeerRecord(addresses=[f"{form.format(number % 250)}{end}"], issued=number)
            for known in dialer.take([seal("peer", run, encode(record), key)]):
                try:
                    await dialer.dial(known.addresses[0])
                except P2PError:
                    continue
        await anyio.sleep(1)


def _on_own_clock(play: Any, *words: Any) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    anyio.run(play, *words, backend="trio", backend_options={"clock": clock})


THIRD_PARTIES: Final = {
    "a Head names 16 addresses of a third party, mail and shell ports among them": by_operator,
    "records of free keys name relays by names that lead to one machine": by_records,
}
"""Each attack by the sentence of its row."""
