"""The announcer of Heads: their order, what a restart remembers, and how often they are renewed."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.publishing.head_announcer import HEAD_LIFE, SEQUENCE_AHEAD, HeadAnnouncer
from echo2.coordinator.publishing.published import Published
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.p2p.envelope import verify_envelope
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol.versions import Head
from tests.support.clock import on_fake_clock
from tests.support.publishing import KEY, SIGNING, NoPeers, no_addresses

NEXT = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
DAY = 86_400.0
VERSION = Published(1, 4, b"r" * 32, b"v" * 32, b"i" * 32)


def announcer(folder: Path, now: Callable[[], float], signing: Signing = SIGNING) -> HeadAnnouncer:
    return HeadAnnouncer(
        signing,
        NoPeers(),  # type: ignore[arg-type]
        head_file=folder / "head",
        addresses=no_addresses,
        clock=now,
        on_announce=lambda era, version, at: None,
    )


def announced(heads: HeadAnnouncer, key: Ed25519PrivateKey = KEY, step: int = 0) -> Head:
    anyio.run(heads.announce, VERSION, step, False)
    assert heads.sealed is not None
    return decode(verify_envelope(heads.sealed, "head", SIGNING.run, {public_bytes(key)}), Head)


def test_the_sequence_rises_while_the_clock_stands_still(tmp_path: Path) -> None:
    heads = announcer(tmp_path, lambda: 5.0)
    assert [announced(heads).sequence for _ in range(3)] == [5_000, 5_001, 5_002]


def test_the_sequence_does_not_fall_when_the_clock_was_set_back_across_a_restart(tmp_path: Path) -> None:
    last = announced(announcer(tmp_path, lambda: DAY)).sequence
    again = announcer(tmp_path, lambda: DAY / 2)
    assert announced(again).sequence == last + 1


def test_a_sequence_of_a_clock_that_was_a_year_ahead_is_dropped_when_the_clock_is_right(tmp_path: Path) -> None:
    now = [400 * DAY]
    heads = announcer(tmp_path, lambda: now[0])
    announced(heads)
    for clock, sequence in ((35 * DAY, 35 * 86_400_000), (34.5 * DAY, 35 * 86_400_000 + 1)):
        now[0] = clock
        assert announced(heads).sequence == sequence
    assert SEQUENCE_AHEAD > 35 * 86_400_000 - 34.5 * 86_400_000


def test_a_restart_serves_the_last_head_at_once(tmp_path: Path) -> None:
    heads = announcer(tmp_path, lambda: 5.0)
    announced(heads)
    assert announcer(tmp_path, lambda: 6.0).sealed == heads.sealed


def test_a_head_of_a_former_key_is_not_served_but_its_sequence_counts(tmp_path: Path) -> None:
    last = announced(announcer(tmp_path, lambda: 5.0)).sequence
    renewed = Signing(SIGNING.run, NEXT, NEXT, 2, former=frozenset({public_bytes(KEY)}))
    again = announcer(tmp_path, lambda: 1.0, renewed)
    assert again.sealed is None
    assert announced(again, NEXT).sequence == last + 1


@pytest.mark.parametrize("content", [b"", b"\xc1", b"x" * 100])
def test_a_damaged_head_file_is_replaced(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "head").write_bytes(content)
    heads = announcer(tmp_path, lambda: 5.0)
    assert heads.sealed is None
    announced(heads)
    assert (tmp_path / "head").read_bytes() == heads.sealed


def test_the_step_of_a_head_is_never_below_its_version(tmp_path: Path) -> None:
    heads = announcer(tmp_path, lambda: 5.0)
    assert [announced(heads, step=step).step for step in (2, 7)] == [4, 7]


@on_fake_clock
async def test_a_head_is_due_a_third_of_its_life_after_the_last_one(tmp_path: Path) -> None:
    heads = announcer(tmp_path, anyio.current_time)
    began = anyio.current_time()
    async with anyio.create_task_group() as group:

        async def announce_once() -> None:
            await anyio.sleep(HEAD_LIFE / 6)
            await heads.announce(VERSION, 0, False)

        group.start_soon(announce_once)
        await heads.until_due()
    assert anyio.current_time() - began == pytest.approx(HEAD_LIFE / 6 + HEAD_LIFE / 3)
