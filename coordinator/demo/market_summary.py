"""The summary of a demo's market: active nodes, nodes on standby, earnings. Pure: from the ledger alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from coordinator.accounts.ledger import Entry
from coordinator.market.entries import EpochClosed, EpochOpened
from coordinator.market.market_state import MarketState
from protocol.money_text import amount_text


def market_lines(run: bytes, entries: Iterable[Entry], names: Mapping[str, str], currency: str) -> list[str]:
    """Return the lines that are printed at the end. `names`: of nodes, by peer id."""
    state, pay, work = MarketState(run), Counter[str](), Counter[str]()
    places: defaultdict[str, Counter[str]] = defaultdict(Counter)
    asks: dict[str, int] = {}
    for entry in entries:
        state.take(entry)
        asks |= state.asks
        if entry.kind == "epoch.opened":
            for node, place in _places(state, msgspec.msgpack.decode(entry.facts, type=EpochOpened).present):
                places[node][place] += 1
        elif entry.kind == "epoch.closed":
            for row in msgspec.msgpack.decode(entry.facts, type=EpochClosed).nodes:
                pay[row.node], work[row.node] = pay[row.node] + row.pay, work[row.node] + row.work
    rows = [f"{'epochs':<10}{state.epoch}, paid {amount_text(pay.total(), currency)} in all"]
    for node in sorted(asks, key=lambda one: asks[one]):
        epochs = ", ".join(f"{places[node][place]} {place}" for place in ("active", "standby", "out"))
        rows.append(
            f"{'':<10}{names.get(node, node):<14}asks {amount_text(asks[node])}/h; epochs: {epochs};"
            f" earned {amount_text(pay[node], currency)} for {work[node] / 1000:,.1f} RE"
        )
    return rows


def _places(state: MarketState, present: Iterable[str]) -> list[tuple[str, str]]:
    if state.open is None:
        return []
    market = state.open.plan.market
    active = {one.node.decode() for one in market.nodes}
    standby = {one.node.decode() for one in market.activation.standby}
    return [(node, "active" if node in active else "standby" if node in standby else "out") for node in present]
