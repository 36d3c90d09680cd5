"""Discovery of runs on the local network over multicast DNS (RFC 6762, 6763): coordinators announce, nodes browse.

    _echo2._tcp.local.   TXT  v=1  name=...  run=<hex>  root=<hex>  https=<hex>  a0=<multiaddress>  a1=...

Rules
1. Any machine on the network can announce anything. An announcement is an unauthenticated invite: it is used only after
   a person has compared its fingerprint (`Invite.fingerprint`), which covers all that the invite pins. Addresses are
   hints, as everywhere.
2. Runs are announced on private addresses only (RFC 1918, unique local, link-local), so that a machine in a data centre
   multicasts nothing to its neighbours. A coordinator without such an address announces nothing.
3. A failure to announce or to browse is no fault of the run: the failure is reported, and the run goes on.
"""

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from echo2.p2p.discovery.invite import Invite
from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.guard import log
from echo2.p2p.multiaddr import address_of

SERVICE: Final = "_echo2._tcp.local."
VERSION: Final = b"1"
MOST_ANNOUNCED_ADDRESSES: Final = 8
MOST_RUNS: Final = 32
"""Most runs that one search returns."""
ANSWER_MS: Final = 2000
"""Milliseconds for a service to answer with its TXT record."""
MOST_TXT_BYTES: Final = 255


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """An announced run. `name`: name for people only."""

    name: str
    invite: Invite


def txt_record(announcement: Announcement) -> dict[str, bytes]:
    invite = announcement.invite
    record = {"v": VERSION, "name": announcement.name.encode()[:80], "run": invite.run.hex().encode()}
    record["root"] = invite.root_hash.hex().encode()
    if invite.https_key is not None:
        record["https"] = invite.https_key.hex().encode()
    fitting = [address.encode() for address in invite.addresses if len(address) + 4 <= MOST_TXT_BYTES]
    return record | {f"a{number}": address for number, address in enumerate(fitting[:MOST_ANNOUNCED_ADDRESSES])}


def parse(record: Mapping[bytes, bytes | None]) -> Announcement:
    """Decode a received TXT record. Raises `Malformed`."""
    given = {key: value or b"" for key, value in record.items()}
    if given.get(b"v") != VERSION:
        raise Malformed("an announcement of another version")
    try:
        numbered = (f"a{number}".encode() for number in range(MOST_ANNOUNCED_ADDRESSES))
        addresses = [given[key].decode() for key in numbered if key in given]
        packed = {"run": given[b"run"], "root_hash": given[b"root"], "https_key": given.get(b"https")}
        pinned = {key: bytes.fromhex(value.decode()) for key, value in packed.items() if value is not None}
        invite = msgspec.convert({**pinned, "addresses": addresses}, Invite)
        name = given.get(b"name", b"").decode(errors="replace")
    except (KeyError, ValueError, msgspec.ValidationError) as error:
        raise Malformed(f"malformed announcement: {error!r}") from error
    return Announcement(name="".join(letter for letter in name if letter.isprintable())[:80], invite=invite)


def private(addresses: Sequence[str]) -> dict[str, int]:
    """Select the direct addresses on private networks (rule 2); return IP address -> port."""
    private_addresses = {}
    for one in map(address_of, addresses):
        ip, port = one.ip, one.port
        if one.route != "direct" or ip is None or port is None:
            continue
        if (ip.is_private or ip.is_link_local) and not ip.is_loopback and not ip.is_unspecified:
            private_addresses[one.host] = port
    return private_addresses


async def announce(announcement: Announcement, hosts: Mapping[str, int]) -> None:
    """Announce a run until cancelled. `hosts`: IP addresses of this machine, each with its port. Raises
    `LocalNetworkFault`."""
    addresses = [ipaddress.ip_address(host).packed for host in hosts]
    short = announcement.invite.run.hex()[:12]
    info = AsyncServiceInfo(
        SERVICE, f"{short}.{SERVICE}", port=next(iter(hosts.values())), addresses=addresses,
        properties=dict(txt_record(announcement)), server=f"echo2-{short}.local.",
    )  # fmt: skip
    try:
        zeroconf = AsyncZeroconf(interfaces=list(hosts))
    except OSError as error:
        raise LocalNetworkFault(f"cannot announce on the local network: {error.strerror or error}") from error
    try:
        await zeroconf.async_register_service(info, allow_name_change=True)
        await asyncio.get_running_loop().create_future()
    finally:
        await asyncio.shield(zeroconf.async_close())  # it withdraws the announcement too


async def discover(seconds: float, interfaces: Sequence[str] | None = None) -> list[Announcement]:
    """Return the runs announced within `seconds`. `interfaces`: IP addresses of this machine; None: all. Raises
    `LocalNetworkFault`."""
    names: dict[str, None] = {}

    def on_change(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Removed and len(names) < MOST_RUNS:
            names[name] = None

    try:
        zeroconf = AsyncZeroconf(interfaces=list(interfaces)) if interfaces else AsyncZeroconf()
    except OSError as error:
        raise LocalNetworkFault(f"cannot browse the local network: {error.strerror or error}") from error
    async with zeroconf:
        async with AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[on_change]):
            await asyncio.sleep(seconds)
        resolved = [await _resolve_service(zeroconf.zeroconf, name) for name in names]
        return [announcement for announcement in resolved if announcement is not None]


async def _resolve_service(zeroconf: Zeroconf, name: str) -> Announcement | None:
    info = AsyncServiceInfo(SERVICE, name)
    if not await info.async_request(zeroconf, ANSWER_MS):
        return None
    try:
        return parse(info.properties)
    except Malformed as error:
        log.info("announcement on the local network ignored: %s", error)
        return None
