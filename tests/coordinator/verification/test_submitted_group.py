"""Groups as arrays: the same bytes are accepted and refused as by the wire type, and long groups cost little."""

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from echo2.coordinator.verification.submitted_group import decode_group, decode_stored_group
from echo2.engines.engine import SampleScore
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Rollout, Segment, Submission
from echo2.tasks.tokenizer import EOS
from echo2.tasks.turn_ends import token_list
from tests.support import group_world
from tests.support.group_world import ALICE, SPEC, TEXT, World

ROLLOUTS, TOKENS = 16, 4096
LONG = msgspec.structs.replace(SPEC, group_size=ROLLOUTS, limit=TOKENS)


class CountingText:
    """A tokenizer that counts. `encoded`: the texts that were encoded."""

    def __init__(self) -> None:
        self.encoded = 0
        self.eos, self.size, self.ends = TEXT.eos, TEXT.size, TEXT.ends

    def encode(self, text: str) -> list[int]:
        self.encoded += 1
        return TEXT.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return TEXT.decode(tokens)


def long_group(lease: Any) -> bytes:
    chance = random.Random(1)
    segments = [Segment(version=lease.version, root=lease.root, first=0)]
    rollouts = [
        Rollout(
            tokens=[*(chance.randrange(2, 50) for _ in range(TOKENS - 1)), EOS],
            turns=[TOKENS],
            logprobs=np.full(TOKENS, -0.5, "<f4").tobytes(),
            segments=segments,
        )
        for _ in range(ROLLOUTS)
    ]
    return encode(Submission(lease=lease.id, era=lease.era, version=0, root=lease.root, rollouts=rollouts))


def test_a_long_group_takes_little_memory_on_its_way_to_the_verdict(tmp_path: Path) -> None:
    """On 439044d its tokens and log-probabilities are lists of Python objects, in several copies."""
    world = World(tmp_path, spec=LONG, batch_groups=8)
    data = long_group(world.lease())
    scores = [SampleScore(logprobs=[-0.5] * TOKENS, margins=[0.0] * TOKENS) for _ in range(ROLLOUTS)]
    tracemalloc.start()
    world.group_service.submissions.submit(ALICE, data, world.now)
    (undecided,) = world.group_service.list_undecided(1)
    receipt = world.decide(undecided, scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert receipt.verdict == "accepted"
    assert peak < 6 * len(data), f"{peak / len(data):.1f} times its {len(data)} bytes"


def test_a_prompt_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 439044d the scoring of each rollout encodes the question again, and does not use it."""
    text = CountingText()
    monkeypatch.setattr(group_world, "TEXT", text)
    world = World(tmp_path, spec=LONG, batch_groups=8)
    lease = world.lease()
    data = long_group(lease)
    world.group_service.submissions.submit(ALICE, data, world.now)
    assert [receipt.verdict for receipt in world.decide_all()] == ["accepted"]
    assert text.encoded == 1


def packed(tokens: Any) -> bytes:
    """Return an encoded submission whose token ids are `tokens`, valid or not."""
    rollout = {
        "tokens": tokens,
        "turns": [1],
        "logprobs": b"1234",
        "segments": [{"version": 0, "root": bytes(32), "first": 0}],
    }
    fields = {"lease": bytes(16), "era": 1, "version": 0, "root": bytes(32), "rollouts": [rollout]}
    return msgspec.msgpack.encode(fields)


GOOD = {
    "small ids": [1, 2, 3, 127],
    "ids of every width": [0, 127, 128, 255, 256, 65_535, 65_536, (1 << 31) - 1],
    "none": [],
    "many small ones": [7] * 70_000,
    "many wide ones": [40_000] * 70_000,
    "one wide one among small ones": [1, 2, 200, 3],
}
BAD = {
    "a negative id": [1, -1],
    "an id of 32 bits": [1, 1 << 31],
    "a float": [1, 2.5],
    "a text": ["a"],
    "a list": [[1]],
    "nil": None,
    "no list": 7,
    "a map": {"a": 1},
    "true": [True],
    "bytes": b"\x01\x02",
}


@pytest.mark.parametrize("what", GOOD)
def test_token_ids_are_read_as_the_wire_type_has_them(what: str) -> None:
    data = packed(GOOD[what])
    (rollout,) = decode_group(data).rollouts
    (wanted,) = decode(data, Submission).rollouts
    assert token_list(rollout.tokens) == wanted.tokens == GOOD[what]
    assert msgspec.msgpack.decode(rollout.packed) == GOOD[what]
    assert (rollout.turns, rollout.logprobs, rollout.segments) == (wanted.turns, wanted.logprobs, wanted.segments)
    assert token_list(decode_stored_group(data).rollouts[0].tokens) == GOOD[what]


@pytest.mark.parametrize("what", BAD)
def test_bytes_that_are_no_list_of_token_ids_are_malformed(what: str) -> None:
    with pytest.raises(Malformed):
        decode(packed(BAD[what]), Submission)
    with pytest.raises(Malformed, match="not a"):
        decode_group(packed(BAD[what]))


def test_too_many_token_ids_are_malformed() -> None:
    for tokens in ([1] * ((1 << 20) + 1), [300] * ((1 << 20) + 1)):
        with pytest.raises(Malformed):
            decode_group(packed(tokens))


def test_bytes_that_stop_or_go_on_are_malformed() -> None:
    data = packed([1, 2, 3])
    for bent in (data[:-1], data + b"\x00", b"", b"\xc1"):
        with pytest.raises(Malformed):
            decode_group(bent)
