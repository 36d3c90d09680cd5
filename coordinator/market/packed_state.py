"""The market's state between two epochs as parts of bytes, and back. Pure.

The bytes are for the same build only: a build that cannot read them computes the state from the ledger. A part is some
1 MB of a state with 100 tranches per node, and takes milliseconds.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, Final

import msgspec

from echo2.coordinator.market.entries import EpochAnnounced
from echo2.coordinator.market.epoch_plan import RunOff
from echo2.coordinator.market.holdback import Tranches
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.market.throughput import LeasedGroup, Throughput
from echo2.ledger.balance_waits import Waits

FORM: Final = 7
"""Raise with every change of the types below."""
NODES: Final = 256
"""Most nodes of a part."""


class _Packed(msgspec.Struct, array_like=True):
    form: int
    epoch: int
    asks: dict[str, int]
    sealed: dict[str, bytes]
    benchmarks: dict[str, int]
    records: dict[str, list[LeasedGroup]]
    suspended: dict[str, int]
    banned: set[str]
    owners: dict[str, bytes]
    announced: EpochAnnounced | None
    forfeits: int
    incumbents: list[str]
    leavers: list[RunOff]
    settled: set[str]
    beacon: bytes | None
    late: set[str]
    payable: dict[str, int]
    waits: Waits


class _PackedNodes(msgspec.Struct, array_like=True):
    measurements: dict[str, Throughput]
    tranches: dict[str, Tranches]


def pack_state(state: MarketState) -> Iterator[bytes]:
    """Return the parts of the present state, however it changes while they are taken. Raises `ValueError` while an
    epoch is open, whose plan is not packed."""
    if state.open is not None:
        raise ValueError(f"epoch {state.open.terms.epoch} is open")
    records = {node: list(of_node) for node, of_node in state.records.items()}
    rest = _Packed(
        FORM, state.epoch, dict(state.asks), dict(state.sealed), dict(state.benchmarks), records,
        dict(state.suspended), set(state.banned), dict(state.owners), state.announced, state.forfeits,
        sorted(state.incumbents), list(state.leavers), set(state.settled), state.beacon, set(state.late),
        dict(state.payable), dict(state.waits),
    )  # fmt: skip
    return _parts(rest, dict(state.measurements), dict(state.tranches))


def _parts(rest: _Packed, measurements: dict[str, Throughput], tranches: dict[str, Tranches]) -> Iterator[bytes]:
    yield msgspec.msgpack.encode(rest, enc_hook=_write_value)
    nodes = list(measurements | tranches)
    for first in range(0, len(nodes), NODES):
        some = nodes[first : first + NODES]
        part = _PackedNodes(
            {node: measurements[node] for node in some if node in measurements},
            {node: tranches[node] for node in some if node in tranches},
        )
        yield msgspec.msgpack.encode(part)


def unpack_state(run: bytes, parts: Iterable[bytes]) -> MarketState:
    """Return the state from its parts. Raises `msgspec.MsgspecError` for those of another build."""
    first, *others = parts
    one = msgspec.msgpack.decode(first, type=_Packed, dec_hook=_read)
    if one.form != FORM:
        raise msgspec.ValidationError(f"the form is {one.form}, not {FORM}")
    state = MarketState(run)
    for other in others:
        nodes = msgspec.msgpack.decode(other, type=_PackedNodes)
        state.measurements |= nodes.measurements
        state.tranches |= nodes.tranches
    state.epoch, state.asks, state.sealed, state.benchmarks = one.epoch, one.asks, one.sealed, one.benchmarks
    state.records = defaultdict(list, one.records)
    state.suspended, state.banned, state.owners = one.suspended, one.banned, one.owners
    state.announced, state.forfeits = one.announced, one.forfeits
    state.incumbents, state.leavers, state.settled = frozenset(one.incumbents), one.leavers, one.settled
    state.beacon, state.late, state.payable, state.waits = one.beacon, one.late, one.payable, one.waits
    return state


def _write_value(value: Any) -> Any:
    if isinstance(value, Fraction):
        return [str(value.numerator), str(value.denominator)]
    raise NotImplementedError(type(value))


def _read(kind: type, value: Any) -> Any:
    if kind is not Fraction:
        raise NotImplementedError(kind)
    try:
        return Fraction(*map(int, value))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise msgspec.ValidationError(f"{str(value)[:40]} is no fraction") from error
