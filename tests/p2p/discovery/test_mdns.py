"""Announcements on the local network: their content, malformed ones, and one over the loopback interface."""

import asyncio
import os
import socket

import msgspec
import pytest

from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.mdns import (
    MOST_ANNOUNCED_ADDRESSES,
    MOST_TXT_BYTES,
    VERSION,
    Announcement,
    announce,
    discover,
    parse,
    private,
    txt_record,
)
from echo2.p2p.errors import LocalNetworkFault, Malformed

INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/192.168.1.7/tcp/4310/p2p/c"], https_key=b"k" * 32)
NEARBY = Announcement(name="café", invite=INVITE)
RECORD = {key.encode(): value for key, value in txt_record(NEARBY).items()}


def test_an_announcement_is_read_as_it_was_written():
    assert parse(RECORD) == NEARBY
    assert all(len(key) + 1 + len(value) <= MOST_TXT_BYTES for key, value in RECORD.items())


def test_the_fingerprint_covers_all_that_is_pinned_and_no_address():
    others = [
        Invite(run=b"x" * 32, root_hash=INVITE.root_hash, addresses=INVITE.addresses, https_key=INVITE.https_key),
        Invite(run=INVITE.run, root_hash=b"x" * 32, addresses=INVITE.addresses, https_key=INVITE.https_key),
        Invite(run=INVITE.run, root_hash=INVITE.root_hash, addresses=INVITE.addresses, https_key=b"x" * 32),
        Invite(run=INVITE.run, root_hash=INVITE.root_hash, addresses=INVITE.addresses),
    ]
    assert len({INVITE.fingerprint, *(other.fingerprint for other in others)}) == 5
    elsewhere = Invite(
        run=INVITE.run, root_hash=INVITE.root_hash, addresses=["/ip4/1.2.3.4/tcp/1"], https_key=b"k" * 32
    )
    assert elsewhere.fingerprint == INVITE.fingerprint == "CAPH-ZYPH-FLYO-B6QF"


BAD = {
    "nothing": {},
    "another version": RECORD | {b"v": b"2"},
    "no run": {key: value for key, value in RECORD.items() if key != b"run"},
    "a run that is no hex": RECORD | {b"run": b"zz"},
    "a run of another length": RECORD | {b"run": b"00"},
    "an https key of another length": RECORD | {b"https": b"00"},
    "no address": {key: value for key, value in RECORD.items() if key != b"a0"},
    "an address that is no text": RECORD | {b"a0": b"\xff\xfe"},
    "values that are absent": dict.fromkeys(RECORD),
}


@pytest.mark.parametrize("name", BAD)
def test_an_announcement_is_refused_with(name):
    with pytest.raises(Malformed):
        parse(BAD[name])


def test_a_name_cannot_write_on_the_terminal():
    assert parse(RECORD | {b"name": b"a\x1b[2J\xff" + b"x" * 500}).name.startswith("a[2J")


def test_no_more_addresses_are_announced_than_fit():
    many = Invite(run=INVITE.run, root_hash=INVITE.root_hash, addresses=["/" + "x" * 300, *map(str, range(15))])
    assert parse(
        {k.encode(): v for k, v in txt_record(Announcement(name="", invite=many)).items()}
    ).invite.addresses == [str(number) for number in range(MOST_ANNOUNCED_ADDRESSES)]


def test_only_private_addresses_are_announced_on():
    addresses = [
        "/ip4/192.168.1.7/tcp/4310/p2p/c",
        "/ip4/8.8.8.8/tcp/4310",
        "/ip4/127.0.0.1/tcp/4310",
        "/ip6/fd00::7/tcp/4310",
        "/ip4/10.0.0.1/tcp/4/p2p/r/p2p-circuit/p2p/c",
        "/ip4/10.0.0.1/tcp/4311/https",
        "/dns4/coord.example/tcp/4310",
    ]
    assert private(addresses) == {"192.168.1.7": 4310, "fd00::7": 4310}


async def test_a_run_is_announced_and_found_on_the_loopback_interface():
    # A run of its own: the same test may be running beside this one.
    here = Announcement(name="café", invite=msgspec.structs.replace(INVITE, run=os.urandom(32)))
    task = asyncio.create_task(announce(here, {"127.0.0.1": 4310}))
    try:
        await asyncio.sleep(0)
        announcements: list[Announcement] = []
        for _ in range(20):
            announcements = await discover(1.0, ["127.0.0.1"])
            if here in announcements or task.done():
                break
    except LocalNetworkFault as fault:
        pytest.skip(f"no multicast here: {fault}")
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        pytest.skip(f"no multicast here: {task.exception()!r}")
    if here not in announcements and not _multicast():
        pytest.skip("no multicast on the loopback interface")
    assert here in announcements
    assert VERSION == b"1"


def _multicast() -> bool:
    """Tell whether a multicast packet comes back over the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            group = socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1")
            one.bind(("", 0))
            one.settimeout(1)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            one.sendto(b"x", ("224.0.0.251", one.getsockname()[1]))
            return one.recv(1) == b"x"
        except OSError:
            return False
