"""The market in sentences for the owner of a node. Pure."""

from echo2.protocol.market import MarketResponse
from echo2.protocol.money_text import amount_text, ask_text

MILLI = 1000
"""Milli-RE in a reference rollout."""


def re_text(work: int) -> str:
    """Return work, in milli-RE, in RE."""
    whole, part = divmod(work, MILLI)
    return f"{whole}.{part:03}".rstrip("0").rstrip(".") + " RE"


def place_text(answer: MarketResponse) -> str:
    """Return where the node stands in the epoch that runs, and what would make it active."""
    if answer.running is None:
        return "no epoch runs"
    epoch = f"epoch {answer.running.epoch}"
    why = f" ({answer.why})" if answer.why else ""
    if answer.place == "active":
        price = "" if answer.price is None else f" at {amount_text(answer.price, answer.currency)} per RE"
        return f"active in {epoch}{price}, for at most {re_text(answer.most)}{why}"
    if answer.place == "standby":
        rank = "" if answer.rank is None else f" at rank {answer.rank}"
        return f"standing by in {epoch}{rank}{_remedy(answer)}{why}"
    return f"{'not active' if answer.place == 'out' else 'no offer of this node'} in {epoch}{_remedy(answer)}{why}"


def ask_standing(answer: MarketResponse) -> str:
    """Return which ask stands, and which one is sealed."""
    stands = "no ask stands" if answer.ask is None else f"the ask {ask_text(answer.ask)} stands"
    if answer.sealed is None or answer.coming is None:
        return stands
    return f"{stands}, another one is sealed for epoch {answer.coming.epoch}"


def _remedy(answer: MarketResponse) -> str:
    if answer.active_at is None:
        return ""
    return (
        f": with an ask of at most {ask_text(answer.active_at)} it would be active "
        f"(`echo2-node config set ask {ask_text(answer.active_at)}`)"
    )
