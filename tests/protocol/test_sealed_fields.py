"""Each field of each sealed request missing, of another type, outside its limits and at them, by generation."""

import msgspec
import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Wire, decode, encode
from echo2.protocol.methods import EMPTY, SEALED
from echo2.protocol.requests import Request
from tests.support.message_fields import at_limits, beyond_limits, doubled, of_wrong_type, sound, wire_type, without

LABELS = [method.request.label for method in SEALED if method.request is not EMPTY]
BODIES = {label: wire_type(label) for label in LABELS} | {"Request": Request}


def read(kind: type[Wire], data: bytes) -> Wire:
    return decode(data, kind)


@pytest.mark.parametrize("name", BODIES)
def test_a_field_that_is_missing_or_of_another_type_or_outside_its_limits_is_named(name: str) -> None:
    kind = BODIES[name]
    bad = [*without(kind), *of_wrong_type(kind), *beyond_limits(kind)]
    assert len(bad) > 8 * len(kind.__struct_fields__) - 8
    for variant in bad:
        with pytest.raises(Malformed, match=f"^not a {name}: ") as refused:
            read(kind, variant.data)
        assert variant.what.split()[0].split(".")[-1] in str(refused.value), variant.what


@pytest.mark.parametrize("name", BODIES)
def test_a_message_at_the_limits_of_each_field_is_read(name: str) -> None:
    kind = BODIES[name]
    for variant in at_limits(kind):
        message = read(kind, variant.data)
        assert read(kind, encode(message)) == message, variant.what


@pytest.mark.parametrize("name", BODIES)
def test_of_a_field_that_stands_twice_the_last_one_counts_and_a_false_first_one_is_refused(name: str) -> None:
    kind = BODIES[name]
    message = read(kind, msgspec.msgpack.encode(sound(kind)))
    for field in sound(kind):
        with pytest.raises(Malformed):
            read(kind, doubled(kind, field, 1.5))
    for variant in at_limits(kind):
        for field, other in variant.fields.items():
            assert read(kind, doubled(kind, field, other)) == message, variant.what


@pytest.mark.parametrize("name", BODIES)
def test_a_field_that_nobody_knows_is_passed_by(name: str) -> None:
    kind = BODIES[name]
    assert read(kind, msgspec.msgpack.encode(sound(kind) | {"later": [{}]})) == read(
        kind, msgspec.msgpack.encode(sound(kind))
    )
