"""Discovery on the local network: a run is joined only by its fingerprint."""

import io

import pytest

from echo2.node.config import NodeConfig
from echo2.node.errors import BadConfig
from echo2.node.links import local_discovery
from echo2.node.links.local_discovery import choose, normal
from echo2.node.main import invite_of
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.mdns import Announcement


def announced(name: str, address: str, root: bytes = b"h") -> Announcement:
    return Announcement(name=name, invite=Invite(run=b"r" * 32, root_hash=root * 32, addresses=[address]))


HONEST = announced("a run", "/ip4/10.0.0.1/tcp/1")
LIAR = announced("a run", "/ip4/10.0.0.66/tcp/1", root=b"x")


def never(announcements):
    raise AssertionError("nobody is asked")


def test_the_fingerprint_chooses_the_run_not_its_name():
    assert choose([LIAR, HONEST], HONEST.invite.fingerprint, never) == HONEST.invite


def test_a_typed_fingerprint_counts_without_case_and_hyphens():
    typed = HONEST.invite.fingerprint.lower().replace("-", " ")
    assert choose([LIAR, HONEST], None, lambda announcements: typed) == HONEST.invite


@pytest.mark.parametrize("typed", ["", "AAAA-AAAA-AAAA-AAAA", "a run", HONEST.invite.fingerprint[:-1]])
def test_no_other_text_joins_a_run(typed):
    with pytest.raises(BadConfig, match="no announced run has the fingerprint"):
        choose([LIAR, HONEST], None, lambda announcements: typed)


def test_addresses_of_the_same_run_from_several_announcements_are_put_together():
    again = announced("else", "/ip4/10.0.0.2/tcp/1")
    chosen_invite = choose([HONEST, again], HONEST.invite.fingerprint, never)
    assert chosen_invite.addresses == ["/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1"]


def test_a_service_joins_by_its_accepted_fingerprint_and_remembers(tmp_path, monkeypatch):
    config = NodeConfig(home=tmp_path, accept_fingerprint=HONEST.invite.fingerprint)
    monkeypatch.setattr(local_discovery, "discover", _one_announcement)
    assert invite_of(config) == HONEST.invite
    monkeypatch.setattr(local_discovery, "discover", _nothing)
    assert invite_of(config) == HONEST.invite, "it is not looked for again"
    assert normal(HONEST.invite.fingerprint).isalnum()


def test_a_home_without_a_run_names_the_announced_ones_and_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(local_discovery, "discover", _one_announcement)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(BadConfig, match=rf"no run was joined here; .* {HONEST.invite.fingerprint} \(a run\): compare"):
        invite_of(NodeConfig(home=tmp_path))


async def _one_announcement(seconds):
    return [LIAR, HONEST]


async def _nothing(seconds):
    return []


def test_without_a_terminal_and_a_fingerprint_nothing_is_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(local_discovery, "discover", _one_announcement)
    with pytest.raises(BadConfig, match="--accept-fingerprint"):
        invite_of(NodeConfig(home=tmp_path))
    monkeypatch.setattr(local_discovery, "discover", _nothing)
    with pytest.raises(BadConfig, match="none is announced"):
        invite_of(NodeConfig(home=tmp_path))


def test_a_fingerprint_that_no_run_has_is_repeated_as_fingerprints_are_printed():
    with pytest.raises(BadConfig, match="no announced run has the fingerprint AAAA-BBBB-CCCC-DDDD; the local network"):
        choose([HONEST], "aaaa bbbbccccdddd", never)
