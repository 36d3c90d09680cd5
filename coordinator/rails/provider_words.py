"""The answer of a provider's program or server as JSON, read with suspicion. Pure.

Rules
1. An answer is one JSON object of at most `MOST_BYTES`: `state` (taken, done, returned, refused, busy or absent), and
   where it has them `amount` (an integer in minor units), `reference` and `why` (texts).
2. Anything else is `unknown`: an amount that is a text, a fraction or a boolean, a `done` or `returned` without an
   amount, another key than the one asked for.
3. Texts are cut to `MOST_WHY` characters, and characters that control a terminal are replaced.
"""

from typing import Annotated, Final, Literal

import msgspec

from echo2.coordinator.rails.rail import MOST_WHY, RailAnswer
from echo2.runtime.printable import printable

MOST_BYTES: Final = 64 << 10
_Minor = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Answered(msgspec.Struct, frozen=True):
    state: Literal["taken", "done", "returned", "refused", "busy", "absent"]
    amount: _Minor | None = None
    reference: str = ""
    why: str = ""
    key: str | None = None


class _Quoted(msgspec.Struct, frozen=True):
    fee: _Minor


_answered = msgspec.json.Decoder(_Answered).decode
_quoted = msgspec.json.Decoder(_Quoted).decode


def unknown(why: str) -> RailAnswer:
    """Return the answer `unknown`. `why`: reason for people; foreign text in it is made printable and cut."""
    return RailAnswer("unknown", why=printable(why)[:MOST_WHY])


def answer(data: bytes, key: str) -> RailAnswer:
    """Return the answer about a payment in a provider's words (rules 1 to 3)."""
    if len(data) > MOST_BYTES:
        return unknown(f"the answer has more than {MOST_BYTES} bytes")
    try:
        said = _answered(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return unknown(f"the answer cannot be read: {error}")
    if said.key not in (None, key):
        return unknown("the answer is about another payment")
    if said.state in ("done", "returned") and said.amount is None:
        return unknown(f"the answer says {said.state}, and no amount")
    why, reference = printable(said.why)[:MOST_WHY], printable(said.reference)[:MOST_WHY]
    return RailAnswer(said.state, said.amount, why, reference)


def fee(data: bytes) -> int | None:
    """Return the fee of a quote, minor units; None: the answer is none."""
    try:
        return _quoted(data).fee if len(data) <= MOST_BYTES else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
