"""The numbers of the protocol, and the tokens that end a turn beside `eos`: bytes, bounds, meaning."""

import json

import msgspec
import pytest

from echo2.engines import temperature
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import authority, numbers
from echo2.protocol.authority import MOST_OTHER_ENDS, RunSpec, TaskReference
from tests.support import paths

GOLDEN = bytes.fromhex(json.loads((paths.VECTORS / "turn_ends.json").read_text())["RunSpec"])
TEMPERED = bytes.fromhex(json.loads((paths.VECTORS / "temperature.json").read_text())["RunSpec"])
SPEC = RunSpec(
    run=b"u" * 32, name="a run", model="llama", assets=[], eos=128_001, vocabulary=128_256,
    tasks=[TaskReference(name="math", version=1, kind="single", other_ends=[128_008, 128_009])], staleness=2,
    group_size=2, limit=16, compute_dtype="float32", engines=["transformers/float32"],
    sampling="gumbel-splitmix64/1", price_mode="points", protocols=(2, 2),
)  # fmt: skip


def test_a_run_with_several_ends_has_the_bytes_of_the_golden_vector() -> None:
    assert encode(SPEC) == GOLDEN
    assert decode(GOLDEN, RunSpec) == SPEC


def test_the_ends_of_a_run_are_those_of_all_its_tasks_each_once() -> None:
    tasks = [TaskReference(name=str(ends), version=1, other_ends=ends) for ends in ([7], [], [40, 7, 128_001])]
    assert msgspec.structs.replace(SPEC, tasks=tasks).ends == (128_001, 7, 40)
    assert msgspec.structs.replace(SPEC, tasks=tasks[1:2]).ends == (128_001,)


def test_a_task_of_an_earlier_runspec_has_no_further_ends() -> None:
    assert decode(msgspec.msgpack.encode({"name": "reverse", "version": 1}), TaskReference).other_ends == []


@pytest.mark.parametrize("ends", [[-1], [1 << 31], list(range(MOST_OTHER_ENDS + 1)), ["</s>"]])
def test_ends_out_of_bounds_are_malformed(ends: list[object]) -> None:
    with pytest.raises(Malformed):
        decode(msgspec.msgpack.encode({"name": "reverse", "version": 1, "other_ends": ends}), TaskReference)


def test_a_run_at_a_temperature_has_the_bytes_of_the_golden_vector_and_one_at_1_says_nothing_of_it() -> None:
    tempered = msgspec.structs.replace(SPEC, sampling="gumbel-splitmix64/2", protocols=(3, 3), temperature=800)
    assert encode(tempered) == TEMPERED
    assert decode(TEMPERED, RunSpec) == tempered
    assert b"temperature" not in GOLDEN


def test_the_bounds_on_the_wire_are_those_of_the_engines() -> None:
    on_wire = authority.PLAIN_TEMPERATURE, authority.LEAST_TEMPERATURE, authority.MOST_TEMPERATURE
    assert on_wire == (
        temperature.PLAIN_TEMPERATURE,
        temperature.LEAST_TEMPERATURE,
        temperature.MOST_TEMPERATURE,
    )


@pytest.mark.parametrize("wrong", [499, 2001, 0.8, -1])
def test_a_temperature_out_of_bounds_is_malformed(wrong: float) -> None:
    fields = msgspec.msgpack.decode(TEMPERED) | {"temperature": wrong}
    with pytest.raises(Malformed):
        decode(msgspec.msgpack.encode(fields), RunSpec)


def test_a_run_needs_a_later_number_only_for_several_ends_or_a_temperature() -> None:
    assert (numbers.number_range([]), numbers.number_range([7])) == ((1, 1), (2, 2))
    assert [numbers.number_range(ends, tempered=True) for ends in ([], [7])] == [(3, 3), (3, 3)]
    assert numbers.SPOKEN_NUMBERS == (1, 3)
