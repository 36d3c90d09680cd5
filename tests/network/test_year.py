"""Years of a run on a fake clock: its Root is renewed, its keys are rotated and revoked, and nodes go on by themselves.

Keys are changed by the commands `echo2-coord keys`. A running coordinator learns of a change by `renew`, which these
commands call over its control socket.
"""

import asyncio
from contextlib import closing
from pathlib import Path

import anyio
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.metrics import status
from echo2.coordinator.run import keys_commands
from echo2.coordinator.web import page
from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.receipts import verify_receipts
from echo2.node.rollouts.worker import EXPIRED_REASON
from echo2.node.trust.trusted_set import TrustedSet
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.identity import generate_key, write_key
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Unproven
from echo2.protocol.leases import LeaseRequest, Receipt
from echo2.protocol.methods import LEASE
from echo2.runtime.control_client import socket_path
from echo2.runtime.errors import LocalFault
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, make_node, until
from tests.support.swarm import Swarm, accepted, make_swarm, wall, working

DAY = 24 * 3600.0
ROLES = ("root", "policy", "channel", "ledger")


def now() -> int:
    return int(wall() * 1000)


def life_of(swarm: Swarm, name: str, key: Ed25519PrivateKey) -> Node:
    """Make a node in the folder of its name, which may exist already."""
    home = swarm.folder / name
    if not (home / "node.key").exists():
        write_key(home / "node.key", key)
    (home / "invite").write_text(swarm.invite().to_text())
    return make_node(swarm.network, home, swarm.invite(), key=key, local=now)


async def changed(
    swarm: Swarm, role: str | None, coordinator: Coordinator | None = None, since: int | None = None
) -> list[str]:
    """Run the operator's command, then `renew`: here the coordinator has no thread for its control socket."""
    socket_path(swarm.folder / "run").unlink(missing_ok=True)
    lines = keys_commands.change(swarm.folder / "run", role, now=now(), secret=None, since=since)
    if coordinator is not None:
        await coordinator.renew()
    return lines


def trusted(node: Node) -> TrustedSet:
    return node.daemon.context.trust_store.trusted


def serial(node: Node) -> int:
    return trusted(node).chain[-1].serial


async def at_work(*nodes: Node, groups: int = 3) -> None:
    """Wait until each of these nodes has `groups` new receipts; none may have met a false answer."""
    before = [accepted(node) for node in nodes]
    await until(lambda: all(accepted(n) >= b + groups for n, b in zip(nodes, before, strict=True)), 120)
    assert [node.coordinator_client.lies for node in nodes] == [[]] * len(nodes)


@pytest.mark.slow
@on_fake_clock
async def test_three_years_with_nodes_that_were_away_for_one_renewal_and_for_two(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    invite, names = swarm.invite(), ("steady", "one", "two")
    keys = {name: generate_key() for name in names}
    async with swarm.coordinating(), working(*(nodes := [life_of(swarm, name, keys[name]) for name in names])):
        await at_work(*nodes)
    years: list[tuple[str | None, tuple[str, ...]]] = [
        (None, ("steady", "one", "two")),
        ("channel", ("steady",)),
        ("policy", ("steady", "one")),
    ]
    for renewal, (role, here) in enumerate(years, start=2):
        await anyio.sleep(340 * DAY)
        nodes = [life_of(swarm, name, keys[name]) for name in here]
        async with swarm.coordinating() as coordinator, working(*nodes):
            await at_work(*nodes)
            assert "ends on" in coordinator.view_builder.build().root_ends
            await changed(swarm, role, coordinator)
            await changed(swarm, "ledger", coordinator)
            assert coordinator.view_builder.build().root_ends == ""
            await until(lambda n=nodes, r=renewal: all(serial(node) == 2 * r - 1 for node in n), 120)
            await at_work(*nodes)
        for node in nodes:
            good, _, _, faults, *_ = verify_receipts(node.home, None)
            assert (good >= 6, faults) == (True, [])
    nodes = [life_of(swarm, name, keys[name]) for name in names]
    newcomer = make_node(swarm.network, tmp_path / "new", invite, local=now)
    async with swarm.coordinating(), working(*nodes, newcomer):
        await at_work(*nodes, newcomer)
        assert [serial(node) for node in (*nodes, newcomer)] == [7, 7, 7, 7]
    assert swarm.invite() == invite


@pytest.mark.parametrize("revoke", [False, True], ids=["rotate", "revoke"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.slow_but("policy-revoke")
@on_fake_clock
async def test_a_key_is_changed_under_a_running_coordinator_and_its_nodes_at_work(
    role: str, revoke: bool, tmp_path: Path
) -> None:
    swarm = make_swarm(tmp_path)
    nodes = [life_of(swarm, name, generate_key()) for name in ("a", "b")]
    async with swarm.coordinating() as coordinator, working(*nodes):
        await at_work(*nodes)
        await changed(swarm, role, coordinator, now() if revoke else None)
        await at_work(*nodes, groups=6)
        assert [serial(node) for node in nodes] == [2, 2]
        assert all("refused" not in node.daemon.outbox.counts() for node in nodes)
    async with swarm.coordinating():
        pass
    for node in nodes:
        good, _, _, faults, *_ = verify_receipts(node.home, None)
        assert (good >= 9, faults) == (True, [])


@pytest.mark.parametrize("revoke", [False, True], ids=["rotate", "revoke"])
@pytest.mark.slow_but("rotate")
@on_fake_clock
async def test_receipts_from_between_issue_and_installation_of_a_root_are_replaced(
    revoke: bool, tmp_path: Path
) -> None:
    """A Root states when it was written, not when it was installed. Documents that the former key signed between the
    two, or after the theft, are no longer valid."""
    swarm = make_swarm(tmp_path)
    home, request, key = swarm.folder / "run", tmp_path / "request", generate_key()
    node = life_of(swarm, "node", key)
    async with swarm.coordinating() as coordinator, working(node):
        await at_work(node)
        stolen = now()
        await at_work(node)
        keys_commands.change(home, "ledger", now=now(), secret=None, since=stolen if revoke else None, out=request)
        await anyio.sleep(2.0)
        await at_work(node)
        keys_commands.sign(request, home / "keys", secret=None, confirm=lambda lines: True)
        socket_path(home).unlink(missing_ok=True)
        keys_commands.install(home, tmp_path / "request.signed", secret=None)
        await coordinator.renew()
        await at_work(node)
    good, _, _, faults, *_ = verify_receipts(node.home, None)
    assert (good >= 12, faults) == (True, [])


@pytest.mark.slow
@on_fake_clock
async def test_a_node_learns_a_newer_root_from_another_node_while_the_coordinator_is_away(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    keys = generate_key(), generate_key()
    informed, ignorant = (life_of(swarm, name, key) for name, key in zip("ab", keys, strict=True))
    async with swarm.coordinating(), working(informed, ignorant):
        await at_work(informed, ignorant)
    await changed(swarm, "channel")
    informed = life_of(swarm, "a", keys[0])
    ignorant = life_of(swarm, "b", keys[1])
    async with swarm.coordinating(), working(informed):
        await at_work(informed)
    async with working(life_of(swarm, "a", keys[0]), ignorant):
        await until(lambda: serial(ignorant) == 2, 120)
        assert ignorant.coordinator_client.peer is None


@pytest.mark.slow
@on_fake_clock
async def test_a_peer_that_passes_a_root_on_with_another_signature_beside_it_parts_no_node_from_its_run(
    tmp_path: Path,
) -> None:
    swarm = make_swarm(tmp_path)
    keys = generate_key(), generate_key()
    peer, node = (life_of(swarm, name, key) for name, key in zip("ab", keys, strict=True))
    async with swarm.coordinating(), working(peer, node):
        await at_work(peer, node)
    await changed(swarm, "channel")
    async with swarm.coordinating(), working(peer := life_of(swarm, "a", keys[0])):
        await at_work(peer)
    peer, node = life_of(swarm, "a", keys[0]), life_of(swarm, "b", keys[1])
    first, second = (decode_unverified(sealed) for sealed in trusted(peer).roots)
    both = [*second.signatures, *first.signatures]
    copy = msgspec.msgpack.encode(msgspec.structs.replace(second, signatures=both))
    trusted(peer).roots[1] = copy
    async with working(peer, node):
        await until(lambda: serial(node) == 2, 120)
    assert trusted(node).roots[1] == copy
    async with swarm.coordinating(), working(again := life_of(swarm, "b", keys[1])):
        await at_work(again)
        assert again.coordinator_client.lies == []


@on_fake_clock
async def test_a_request_to_a_former_recipient_brings_the_roots_for_a_day_and_the_node_repeats_it(
    tmp_path: Path,
) -> None:
    """The node hears no Head: it learns of the new key from a refusal."""
    swarm = make_swarm(tmp_path)
    node = life_of(swarm, "node", generate_key())
    node.daemon.follower.heads.hear = heard_nothing  # type: ignore[method-assign]
    async with swarm.coordinating() as coordinator:
        coordinator.publisher.announce = no_announcement  # type: ignore[method-assign]
        async with working(life_of(swarm, "other", generate_key()), node):
            await until(lambda: node.coordinator_client.peer)
            await changed(swarm, "channel", coordinator)
            link = node.coordinator_client
            before, asked = (
                link.peer,
                LeaseRequest(nonce=bytes(16), era=7, version=0, root=bytes(32), engine="bigram/float32/cpu"),
            )
            assert serial(node) == 1
            with pytest.raises(RequestRefused, match="Version 0, as it was named, is not one of this run's"):
                await link.call(LEASE, asked)
            assert serial(node) == 2
            assert (link.peer, link.lies) == (before, []), "the line was given up"


@pytest.mark.parametrize("role", ["channel", "ledger"])
@pytest.mark.slow_but("ledger")
@on_fake_clock
async def test_an_answer_under_a_key_that_a_node_does_not_know_is_no_false_answer(role: str, tmp_path: Path) -> None:
    """The first answer under the new Root's keys arrives before its Head."""
    swarm = make_swarm(tmp_path)
    node = life_of(swarm, "node", generate_key())
    async with swarm.coordinating() as coordinator, working(node):
        await at_work(node)
        announce = coordinator.publisher.announce
        coordinator.publisher.announce = no_announcement  # type: ignore[method-assign]
        await changed(swarm, role, coordinator)
        await at_work(node, groups=4)
        assert serial(node) == 2
        coordinator.publisher.announce = announce  # type: ignore[method-assign]
        await at_work(node)


async def heard_nothing(peer: str, sealed: bytes) -> bool:
    return False


async def no_announcement() -> None:
    await asyncio.sleep(0)


def receipts(node: Node) -> list[bytes]:
    """Return the sealed Receipts in a node's folder."""
    path = next(node.home.glob("runs/*/outbox.sqlite"))
    with closing(Outbox(path, node=bytes(32), limit=1)) as outbox:
        return [row.receipt for row in outbox.rows() if row.receipt is not None]


@pytest.mark.slow
@on_fake_clock
async def test_what_a_revoked_key_signed_goes_out_under_the_new_one(tmp_path: Path) -> None:
    """The node had not fetched the receipt when the ledger key was revoked."""
    swarm = make_swarm(tmp_path)
    key = generate_key()
    node = life_of(swarm, "node", key)
    async with swarm.coordinating(), working(node):
        await at_work(node)
        swarm.scorer.seconds = 30.0
        await until(lambda: node.daemon.outbox.counts().get("received", 0) >= 2, 120)
    swarm.scorer.seconds = 0.01
    async with swarm.coordinating():
        await anyio.sleep(20)
    await changed(swarm, "ledger", since=now())
    again = life_of(swarm, "node", key)
    stored = receipts(again)
    async with swarm.coordinating(), working(again):
        await at_work(again, groups=6)
    chain, kept = trusted(again).chain, 0
    for sealed in receipts(again):
        signer = decode_unverified(sealed).signatures[0].key
        if sealed in stored:
            kept += 1
            assert signer == chain[0].roles["ledger"].keys[0]
            with pytest.raises(Unproven, match="revoked"):
                trusted(again).open_kept(sealed, "receipt")
        else:
            assert signer == chain[1].roles["ledger"].keys[0]
            decode(trusted(again).open_kept(sealed, "receipt"), Receipt)
    assert kept == len(stored) > 0
    good, _, _, faults, *_ = verify_receipts(again.home, None)
    assert (good, faults) == (len(receipts(again)), []), "the node keeps what it stored before the revocation"


@on_fake_clock
async def test_a_coordinator_takes_no_root_that_its_folder_cannot_stand_on(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    node = life_of(swarm, "node", generate_key())
    async with swarm.coordinating() as coordinator, working(node):
        await changed(swarm, "policy")
        for path in (swarm.folder / "run/keys").glob("policy-*.pem"):
            path.unlink()
        with pytest.raises(LocalFault, match="put the right file back, or rotate the key"):
            await coordinator.renew()
        await at_work(node)
        assert serial(node) == 1


@pytest.mark.slow
@on_fake_clock
async def test_nodes_do_no_work_under_a_root_that_has_ended_and_go_on_when_it_is_renewed(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    await anyio.sleep(365 * DAY - 60)
    node = life_of(swarm, "node", generate_key())
    async with swarm.coordinating() as coordinator, working(node):
        await at_work(node)
        await anyio.sleep(90)
        told = (await node.daemon.commands.why({}))["blocked"]
        done = node.daemon.rollouts.done
        await anyio.sleep(60)
        assert (told, node.daemon.rollouts.done) == (EXPIRED_REASON, done)
        assert "ended on" in coordinator.view_builder.build().root_ends
        await changed(swarm, None, coordinator)
        await at_work(node)


@on_fake_clock
async def test_from_day_335_page_status_and_log_say_that_the_root_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swarm = make_swarm(tmp_path)
    await anyio.sleep(334 * DAY)
    async with swarm.coordinating() as coordinator:
        await anyio.sleep(5)
        assert coordinator.view_builder.build().root_ends == ""
    await anyio.sleep(DAY)
    capsys.readouterr()
    async with swarm.coordinating() as coordinator:
        await anyio.sleep(5)
        state = coordinator.view_builder.build()
        told = "renew it with the root key, by `echo2-coord keys renew`"
        assert told in state.root_ends
        assert f"The run's keys</b>: {state.root_ends}" in page.page(state).replace("&#39;", "'")
        assert any(text_line.startswith("keys") and told in text_line for text_line in status.lines(state))
    assert capsys.readouterr().out.count("Root ends soon") == 1
