"""The market's state between two epochs as bytes, and back. Pure.

The bytes are for the same build only: a build that cannot read them computes the state from the ledger.
"""

from collections import defaultdict
from fractions import Fraction
from typing import Any, Final

import msgspec

from coordinator.accounts.balance_waits import Waits
from coordinator.market.entries import EpochAnnounced
from coordinator.market.epoch_plan import RunOff
from coordinator.market.holdback import Tranche
from coordinator.market.market_state import MarketState
from coordinator.market.throughput import LeasedGroup, Throughput

FORM: Final = 5
"""Raise with every change of the types below."""


class _Packed(msgspec.Struct, array_like=True):
    form: int
    epoch: int
    asks: dict[str, int]
    sealed: dict[str, bytes]
    benchmarks: dict[str, int]
    measurements: dict[str, Throughput]
    records: dict[str, list[LeasedGroup]]
    tranches: dict[str, list[Tranche]]
    suspended: dict[str, int | None]
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


def packed(state: MarketState) -> bytes:
    """Return the state as bytes. Raises `ValueError` while an epoch is open, whose plan is not packed."""
    if state.open is not None:
        raise ValueError(f"epoch {state.open.terms.epoch} is open")
    one = _Packed(
        FORM, state.epoch, state.asks, state.sealed, state.benchmarks, state.measurements, state.records,
        state.tranches, state.suspended, state.owners, state.announced, state.forfeits, sorted(state.incumbents),
        state.leavers, state.settled, state.beacon, state.late, state.payable, state.waits,
    )  # fmt: skip
    return msgspec.msgpack.encode(one, enc_hook=_written)


def unpacked(run: bytes, data: bytes) -> MarketState:
    """Return the state from bytes. Raises `msgspec.MsgspecError` for bytes of another build."""
    one = msgspec.msgpack.decode(data, type=_Packed, dec_hook=_read)
    if one.form != FORM:
        raise msgspec.ValidationError(f"the form is {one.form}, not {FORM}")
    state = MarketState(run)
    state.epoch, state.asks, state.sealed, state.benchmarks = one.epoch, one.asks, one.sealed, one.benchmarks
    state.measurements, state.records = one.measurements, defaultdict(list, one.records)
    state.tranches, state.suspended, state.owners = one.tranches, one.suspended, one.owners
    state.announced, state.forfeits = one.announced, one.forfeits
    state.incumbents, state.leavers, state.settled = frozenset(one.incumbents), one.leavers, one.settled
    state.beacon, state.late, state.payable, state.waits = one.beacon, one.late, one.payable, one.waits
    return state


def _written(value: Any) -> Any:
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
