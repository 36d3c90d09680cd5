"""`echo2-coord market simulate`: its options, and the rows that it prints."""

from fractions import Fraction
from typing import Annotated

import typer

from benchmarks.plays import market_simulation
from benchmarks.plays.market_play import PlayTerms
from echo2.coordinator.command_line.checkout_commands import PASSED_APP
from echo2.coordinator.command_line.command_options import CommandApp
from echo2.coordinator.market.epoch_terms import MOST_MONEY
from echo2.coordinator.market.market_quote import QuoteChanges
from echo2.coordinator.market.quote_text import amount_of, check_changes
from echo2.protocol.sealed_asks import LEAST_ASK, MOST_ASK, BadAsk

market_simulate_app = CommandApp(**PASSED_APP)


@market_simulate_app.command()
def market_simulate(
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="Number of nodes.")] = 40,
    need: Annotated[float, typer.Option(min=0.01, max=10.0, help="Share of the nodes' supply that is needed.")] = 0.5,
    ask: Annotated[str, typer.Option(help="Median cost of a node per hour, which is its ask.")] = "0.10",
    rate: Annotated[int, typer.Option(min=1, max=10**6, help="Median RE per hour of a node.")] = 60,
    away: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of the nodes that are away in an epoch.")] = 0.1,
    reserve: Annotated[str, typer.Option(help="Highest price per RE.")] = "0.005",
    budget: Annotated[str | None, typer.Option(help="Of an epoch, as in 2.50.", show_default="it never binds")] = None,
    newcomers: Annotated[int, typer.Option(min=0, max=1000, help="Thousandths of the need for newcomers.")] = 50,
    owner_cap: Annotated[
        int, typer.Option(min=1, max=1000, help="Thousandths of the need per owner; 1000: no cap.")
    ] = 400,
    epoch_seconds: Annotated[int, typer.Option(min=60, max=86_400, help="Length of an epoch.")] = 900,
    epochs: Annotated[int, typer.Option(min=1, max=1000, help="Epochs that are counted, per seed.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Populations.")] = 3,
) -> None:
    """Try the settings of a market on seeded populations, and then with single ones changed: who works, what an epoch
    costs, what a false ask gains."""
    most, whole = amount_of(reserve, "--reserve"), None if budget is None else amount_of(budget, "--budget")
    check_changes(QuoteChanges(reserve=most, budget=whole))
    cost = amount_of(ask, "--ask")
    if not LEAST_ASK <= cost <= MOST_ASK:
        raise BadAsk(f"--ask is {ask}: a cost per hour lies from 0.000001 to 100000")
    population = market_simulation.Population(nodes, cost, 1000 * rate, Fraction(str(need)), Fraction(str(away)))
    most_paid = MOST_MONEY if whole is None else whole
    terms = PlayTerms(0, most, most_paid, 1000 * epoch_seconds, newcomers, owner_cap)
    rows = list(market_simulation.tried(population, terms, epochs, seeds))
    print("\n".join(market_simulation.lines(rows, terms.milliseconds, "units of the currency")))
