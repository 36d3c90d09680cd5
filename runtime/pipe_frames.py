"""Encode the frames of the pipes between a daemon and its children (runtime/child.py, rule 1)."""

import struct
from typing import Literal

import msgspec

MAX_FRAME = 256 * 2**20  # bytes: above any message of ours; tensors travel as files
LENGTH = struct.Struct(">I")

Kind = Literal["call", "answer", "error", "cancel"]


class PipeFrame(msgspec.Struct, array_like=True, frozen=True):
    """A message on the pipe. `id` 0: a notification of the child, which answers no call. The kind cancel takes back the
    call `id`."""

    id: int
    kind: Kind
    method: str
    body: msgspec.Raw


class PipeFault(msgspec.Struct, array_like=True, frozen=True):
    """An error of a handler. `kind`: the name of the exception's class."""

    kind: str
    message: str


class InvalidPipeFrame(Exception):
    """The other side sent bytes that are no frame."""


decode_frame = msgspec.msgpack.Decoder(PipeFrame).decode


def encoded_frame(id: int, kind: Kind, method: str, body: object) -> bytes:
    """Encode one frame with its length. Raises ValueError above `MAX_FRAME`."""
    data = msgspec.msgpack.encode(PipeFrame(id, kind, method, msgspec.Raw(msgspec.msgpack.encode(body))))
    if len(data) > MAX_FRAME:
        raise ValueError(f"{method}: a message of {len(data)} bytes is above the limit of {MAX_FRAME}")
    return LENGTH.pack(len(data)) + data
