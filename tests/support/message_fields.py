"""Messages by generation from their types: a sound one, and each field missing, of another type, and at its limits.

All of it follows from the type alone, so a message that is new is covered with no further word. Values are what
MessagePack encodes: a struct is a dict.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from msgspec import UNSET, inspect

from echo2.p2p.wire_types import Wire

WRONG: Final[dict[str, Any]] = {
    "nil": None, "bool": True, "int": 5, "float": 1.5, "nan": float("nan"), "str": "text", "bytes": b"bytes",
    "list": [{}], "dict": {"a": []},
}  # fmt: skip
"""Kind -> a value of it. No field of a message takes a list of maps, or a map, with other content."""
_KINDS: Final[dict[type[inspect.Type], tuple[str, ...]]] = {
    inspect.NoneType: ("nil",), inspect.BoolType: ("bool",), inspect.IntType: ("int",), inspect.StrType: ("str",),
    inspect.BytesType: ("bytes",), inspect.LiteralType: (), inspect.ListType: (), inspect.TupleType: (),
    inspect.StructType: (),
}  # fmt: skip
LARGEST: Final = 1 << 16
"""Most items or bytes of a value that is generated: higher limits are those of the request's size."""


@dataclass(frozen=True)
class Variant:
    """A message with one field changed. `what`: for people."""

    what: str
    fields: dict[str, Any]

    @property
    def data(self) -> bytes:
        return bytes(msgpack.packb(self.fields))


def wire_type(name: str) -> type[Wire]:
    (kind,) = [one for one in Wire.__subclasses__() if one.__name__ == name]
    return kind


def sound(kind: type[Wire]) -> dict[str, Any]:
    """Return the fields of a sound message with every field, each at its least."""
    return _whole(_struct(inspect.type_info(kind)))


def without(kind: type[Wire]) -> Iterator[Variant]:
    """Yield the message with each field missing that must be there, at every depth."""
    for path, field in _fields(_struct(inspect.type_info(kind)), ()):
        if field.required:
            yield Variant(f"{_name(path)} is missing", _changed(sound(kind), path, drop=True))


def of_wrong_type(kind: type[Wire]) -> Iterator[Variant]:
    """Yield the message with each field of each type that it is not, at every depth."""
    for path, field in _fields(_struct(inspect.type_info(kind)), ()):
        taken = {one for option in _options(field.type) for one in _taken(option)}
        for name, value in WRONG.items():
            if name not in taken:
                yield Variant(f"{_name(path)} is {name}", _changed(sound(kind), path, value))


def beyond_limits(kind: type[Wire]) -> Iterator[Variant]:
    """Yield the message with each field just outside each of its limits."""
    for path, field in _fields(_struct(inspect.type_info(kind)), ()):
        for value in _outside(field.type):
            yield Variant(f"{_name(path)} is {_short(value)}", _changed(sound(kind), path, value))


def at_limits(kind: type[Wire]) -> Iterator[Variant]:
    """Yield the message with each field at each of its limits, and without each that may be missing."""
    for path, field in _fields(_struct(inspect.type_info(kind)), ()):
        for value in _edges(field.type):
            yield Variant(f"{_name(path)} is {_short(value)}", _changed(sound(kind), path, value))
        if not field.required:
            yield Variant(f"{_name(path)} is left out", _changed(sound(kind), path, drop=True))


def doubled(kind: type[Wire], name: str, first: Any) -> bytes:
    """Return the bytes of a sound message in which a field stands twice, at first with another value."""
    pairs = [(name, first), *sound(kind).items()]
    return bytes(msgpack.Packer().pack_map_pairs(pairs))


def _struct(info: inspect.Type) -> inspect.StructType:
    assert isinstance(info, inspect.StructType)
    return info


def _whole(info: inspect.StructType) -> dict[str, Any]:
    return {field.encode_name: _least(field.type) for field in info.fields}


def _fields(info: inspect.StructType, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], inspect.Field]]:
    """Yield each field with its path, and those of structs within, also of the first item of a list."""
    for field in info.fields:
        here = (*path, field.encode_name)
        yield here, field
        for option in _options(field.type):
            if isinstance(option, inspect.StructType):
                yield from _fields(option, here)
            elif isinstance(option, inspect.ListType) and isinstance(option.item_type, inspect.StructType):
                yield from _fields(option.item_type, (*here, 0))


def _options(info: inspect.Type) -> tuple[inspect.Type, ...]:
    options = info.types if isinstance(info, inspect.UnionType) else (info,)
    unknown = [one for one in options if type(one) not in _KINDS]
    assert not unknown, f"fields of {unknown} are not generated yet: extend this module"
    return options


def _taken(option: inspect.Type) -> tuple[str, ...]:
    """Return the kinds that are no wrong type: a struct that needs no field is any map."""
    if isinstance(option, inspect.StructType) and not any(field.required for field in option.fields):
        return ("dict",)
    return _KINDS[type(option)]


def _least(info: inspect.Type) -> Any:
    """Return the least sound value; a list that may be empty has one item, so that what is within is covered."""
    option = next(one for one in _options(info) if not isinstance(one, inspect.NoneType))
    match option:
        case inspect.BoolType():
            return False
        case inspect.IntType():
            return option.ge or 0
        case inspect.StrType():
            return "a" * (option.min_length or 1)
        case inspect.BytesType():
            return bytes(option.min_length or 0)
        case inspect.LiteralType():
            return option.values[0]
        case inspect.ListType():
            return [_least(option.item_type)] * max(1, option.min_length or 0)
        case inspect.TupleType():
            return [_least(one) for one in option.item_types]
        case inspect.StructType():
            return _whole(option)
    raise AssertionError(option)


def _edges(info: inspect.Type) -> Iterator[Any]:
    """Yield sound values at the limits of a field."""
    for option in _options(info):
        match option:
            case inspect.NoneType():
                yield None
            case inspect.IntType():
                yield from (one for one in (option.ge, option.le, option.lt and option.lt - 1) if one is not None)
            case inspect.StrType() | inspect.BytesType() | inspect.ListType():
                sizes = (option.min_length or 0, option.max_length)
                yield from (_sized(option, size) for size in sizes if size is not None and size <= LARGEST)


def _outside(info: inspect.Type) -> Iterator[Any]:
    """Yield values just outside the limits of a field."""
    for option in _options(info):
        match option:
            case inspect.IntType():
                yield from ([] if option.ge is None else [option.ge - 1])
                yield from ([] if option.lt is None else [option.lt, (1 << 64) - 1])
                yield from ([] if option.le is None else [option.le + 1])
            case inspect.StrType() | inspect.BytesType() | inspect.ListType():
                sizes = (option.min_length and option.min_length - 1, option.max_length and option.max_length + 1)
                yield from (_sized(option, size) for size in sizes if size is not None and size <= LARGEST)
            case inspect.LiteralType():
                yield f"{option.values[0]}x"
            case inspect.TupleType():
                least = _least(option)
                yield from (least[:-1], [*least, least[-1]])


def _sized(info: inspect.StrType | inspect.BytesType | inspect.ListType, size: int) -> Any:
    if isinstance(info, inspect.ListType):
        return [_least(info.item_type)] * size
    return "a" * size if isinstance(info, inspect.StrType) else bytes(size)


def _changed(
    fields: dict[str, Any], path: tuple[Any, ...], value: Any = UNSET, *, drop: bool = False
) -> dict[str, Any]:
    *outer, last = path
    place: Any = fields
    for step in outer:
        place = place[step]
    if drop:
        del place[last]
    else:
        place[last] = value
    return fields


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(step) for step in path)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 30 else f"{type(value).__name__} of {len(value)}"
