"""A run survives a change of its keys: nodes and coordinator continue under Roots with other keys.

The Roots are written by hand, in the form that any commit reads: a file root/2.root, and key files. Tests of the
commands that change keys are in test_year.py.
"""

import shutil
from pathlib import Path

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.discovery.invite import Invite
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.identity import generate_key, load_key, public_bytes, write_key
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys, Root
from echo2.protocol.versions import Head
from echo2.weights.documents import Version
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, make_node, until
from tests.support.swarm import Swarm, accepted, make_swarm, wall, working


def by_hand(run: Path, role: str) -> Ed25519PrivateKey:
    """Write a second Root with another key for `role`, as an operator of any commit could. The earlier key stays beside
    it; the channel's stays as the network identity."""
    keys, first = run / "keys", decode(decode_unverified((run / "root/1.root").read_bytes()).payload, Root)
    new, root = generate_key(), load_key(keys / "root.pem")
    (keys / f"{role}.pem").rename(keys / ("network.pem" if role == "channel" else f"{role}-before.pem"))
    write_key(keys / f"{role}.pem", new)
    roles = first.roles | {role: RoleKeys(keys=[public_bytes(new)], threshold=1)}
    second = Root(
        run=first.run,
        serial=2,
        roles=roles,
        expires=int(wall() * 1000) + 300 * 24 * 3600_000,
        issued=int(wall() * 1000),
    )
    (run / "root/2.root").write_bytes(seal("root", first.run, encode(second), root))
    return new


def life_of(swarm: Swarm, name: str, key: Ed25519PrivateKey) -> Node:
    """Make a node in the folder of its name, which may exist already."""
    return make_node(swarm.network, swarm.folder / name, swarm.invite(), key=key, local=lambda: int(wall() * 1000))


async def worked(swarm: Swarm, node: Node, groups: int = 3) -> None:
    """Run the coordinator until this node gets receipts."""
    async with swarm.coordinating(), working(node):
        await until(lambda: accepted(node) >= groups)


@pytest.mark.slow
@on_fake_clock
async def test_a_channel_key_written_by_hand_takes_over_and_the_old_invite_leads_to_the_run(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    before = Invite.from_text(swarm.run.invite(["/memory/0"]))
    key = generate_key()
    await worked(swarm, life_of(swarm, "old", key))
    new = by_hand(swarm.folder / "run", "channel")
    try:
        run = swarm.run
        assert Invite.from_text(run.invite(["/memory/0"])).addresses == before.addresses, "the invite has changed"
        await worked(swarm, life_of(swarm, "newcomer", generate_key()))
        again = life_of(swarm, "old", key)
        await worked(swarm, again, accepted(again) + 3)
    except Exception as error:
        pytest.fail(f"the run does not go on under its new channel key: {error!r}")
    head = (swarm.folder / "run/head").read_bytes()
    assert [one.key for one in decode_unverified(head).signatures] == [public_bytes(new)]
    assert decode(decode_unverified(head).payload, Head).root_serial == 2


@on_fake_clock
async def test_a_policy_key_written_by_hand_takes_over_and_nodes_hold_what_they_held(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    key = generate_key()
    await worked(swarm, life_of(swarm, "node", key))
    new = by_hand(swarm.folder / "run", "policy")
    try:
        async with swarm.coordinating() as coordinator:
            latest = coordinator.publisher.latest
            assert latest is not None
            sealed = swarm.store.document(latest.version_hash)
            assert sealed is not None
            assert [one.key for one in decode_unverified(sealed).signatures] == [public_bytes(new)]
            assert Version.from_bytes(decode_unverified(sealed).payload).root == latest.root
    except Exception as error:
        pytest.fail(f"the coordinator does not start under its new policy key: {error!r}")
    again, newcomer = life_of(swarm, "node", key), life_of(swarm, "newcomer", generate_key())
    before = accepted(again)
    async with swarm.coordinating(), working(again, newcomer):
        await until(lambda: accepted(again) >= before + 3 and accepted(newcomer) >= 3, 120)
        assert again.coordinator_client.lies == newcomer.coordinator_client.lies == []


@pytest.mark.slow
@on_fake_clock
async def test_a_ledger_key_written_by_hand_takes_over_and_no_receipt_of_before_blocks_those_behind_it(
    tmp_path: Path,
) -> None:
    """Receipts of groups decided while the node was away wait at the coordinator, signed by the old key."""
    swarm = make_swarm(tmp_path)
    key = generate_key()
    node = life_of(swarm, "node", key)
    swarm.scorer.seconds = 10.0
    async with swarm.coordinating(), working(node):
        await until(lambda: node.daemon.outbox.counts().get("received", 0) >= 3, 120)
    async with swarm.coordinating():
        await anyio.sleep(20)  # the node's open groups are decided, and their receipts signed by the old key
    by_hand(swarm.folder / "run", "ledger")
    again = life_of(swarm, "node", key)
    swarm.scorer.seconds = 0.01
    before = accepted(again)
    async with swarm.coordinating(), working(again):
        await anyio.sleep(30)
        assert again.coordinator_client.lies == [], "the run's own receipts are taken for lies"
        assert accepted(again) >= before + 5


@on_fake_clock
async def test_a_folder_with_a_root_that_names_a_key_which_is_not_there_says_so(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    by_hand(swarm.folder / "run", "policy")
    shutil.copy(swarm.folder / "run/keys/policy-before.pem", swarm.folder / "run/keys/policy.pem")
    with pytest.raises(Exception, match=r"policy\.pem is not this run's policy key"):
        _ = swarm.run
