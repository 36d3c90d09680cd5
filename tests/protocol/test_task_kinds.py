"""Kinds of task: what a node needs to work for each, and the wire's optional fields about them."""

import json
import struct

import msgspec
import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Wire, decode, encode
from echo2.protocol.authority import MOST_WEIGHT, TaskReference
from echo2.protocol.leases import Rollout, Segment
from echo2.protocol.requests import Hello
from echo2.protocol.steps import StepRequest
from echo2.protocol.task_kinds import OPENED_KIND, PLAYED_KINDS, PURE_KIND, SERVED_KIND, SINGLE_KIND, is_played
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "task_kinds.json").read_text())
GYM = TaskReference(name="gym-easy", version=1, kind=SINGLE_KIND, weight=3, settings_hash=b"s" * 32)
HELLO = Hello(
    protocols=(1, 1), software="echo2/0.1", name="a node", engine="transformers/float32/cpu", device="a CPU",
    tasks=[TaskReference(name="single_sum", version=1)], record=b"sealed", kinds=[SINGLE_KIND],
)  # fmt: skip


@pytest.mark.parametrize("message", [GYM, HELLO], ids=lambda message: type(message).__name__)
def test_the_optional_fields_have_the_bytes_of_the_golden_vectors(message: Wire) -> None:
    golden = bytes.fromhex(VECTORS[type(message).__name__])
    assert encode(message) == golden
    assert decode(golden, type(message)) == message


SEGMENTS = [Segment(version=12, root=b"r" * 32, first=0)]
OPENED_EPISODES = {
    "first turn": StepRequest(lease=b"lease id 16 byte", sample=3, turn_number=0, tokens=[]),
    "rollout": Rollout(
        tokens=[9, 300, 5, 1], turns=[0, 2, 2], logprobs=struct.pack("<2f", -0.5, -0.25), segments=SEGMENTS
    ),
    "not opened": Rollout(tokens=[], turns=[0], logprobs=b"", segments=SEGMENTS),
}


@pytest.mark.parametrize("case", OPENED_EPISODES)
def test_an_opened_episode_has_the_bytes_of_the_golden_vectors(case: str) -> None:
    message, golden = OPENED_EPISODES[case], bytes.fromhex(VECTORS[f"opened: {case}"])
    assert encode(message) == golden
    assert decode(golden, type(message)) == message


def test_a_task_of_an_earlier_runspec_is_pure_has_weight_1_and_no_settings() -> None:
    old = decode(msgspec.msgpack.encode({"name": "reverse", "version": 1}), TaskReference)
    assert (old.kind, old.weight, old.settings_hash) == (PURE_KIND, 1, None)


@pytest.mark.parametrize("weight", [0, -1, MOST_WEIGHT + 1])
def test_a_weight_out_of_bounds_is_malformed(weight: int) -> None:
    with pytest.raises(Malformed):
        decode(msgspec.msgpack.encode({"name": "reverse", "version": 1, "weight": weight}), TaskReference)


TASKS = {("reverse", 1), ("guess", 1)}
CASES = {
    "a pure task of the build": (PURE_KIND, "reverse", 1, (), True),
    "a pure task in another version": (PURE_KIND, "reverse", 2, (SINGLE_KIND,), False),
    "a pure task that the build lacks": (PURE_KIND, "gym", 1, (SINGLE_KIND,), False),
    "a single task that the build lacks": (SINGLE_KIND, "gym", 1, (SINGLE_KIND,), True),
    "a single task, by a node older than the kinds, even with the task": (SINGLE_KIND, "reverse", 1, (), False),
    "a task of a kind invented later": (SERVED_KIND, "gym", 1, (SINGLE_KIND,), False),
    "an opened task, by a node older than that kind": (OPENED_KIND, "gym", 1, (SINGLE_KIND, SERVED_KIND), False),
    "an opened task, by a node of this build": (OPENED_KIND, "gym", 1, PLAYED_KINDS, True),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_node_can_work_for(case: str) -> None:
    kind, name, version, kinds, expected = CASES[case]
    assert is_played(kind, name, version, kinds=kinds, tasks=TASKS) is expected
