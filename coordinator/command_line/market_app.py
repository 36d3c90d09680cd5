"""`echo2-coord market`: what work would cost now, and an operator's settings tried on seeded populations."""

from pathlib import Path
from typing import Annotated, Final

import typer

from echo2.coordinator.command_line.checkout_commands import PASSED_ON, pass_on
from echo2.coordinator.command_line.command_options import CommandApp, Home

market_app = CommandApp(help="Prices of a market, before they are paid.", no_args_is_help=True)
MOST_RATE: Final = 10**9
"""RE per hour."""


@market_app.command("quote")
def market_quote_command(
    home: Home = Path("."),
    need: Annotated[
        int | None, typer.Option(min=0, max=MOST_RATE, help="RE per hour.", show_default="as announced")
    ] = None,
    reserve: Annotated[
        str | None, typer.Option(help="Highest price per RE, as in 0.0125.", show_default="as announced")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Of an epoch, as in 2.50.", show_default="as announced")] = None,
) -> None:
    """Say what an epoch would cost by the asks and measurements of now, what another reserve price, budget or need
    changes, and what was spent of the budgets. Works while the coordinator runs, and changes nothing."""
    from echo2.coordinator.accounts.ledger import Ledger
    from echo2.coordinator.database.database import Database
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.epochs.running_market import payment_view
    from echo2.coordinator.market import market_quote, quote_text
    from echo2.coordinator.metrics.status import payment_sentence
    from echo2.coordinator.run import setup
    from echo2.coordinator.settings import config

    changes = market_quote.QuoteChanges(
        None if need is None else 1000 * need,
        None if reserve is None else quote_text.amount_of(reserve, "--reserve"),
        None if budget is None else quote_text.amount_of(budget, "--budget"),
    )
    quote_text.check_changes(changes)
    place = RunFolder(home)
    settings, (_, _, _, spec) = config.load(place.config), setup.read_documents(place)
    with Database.read(place.database) as database:
        past = market_quote.history(spec.run, Ledger(database).entries())
    rows, terms = market_quote.quote_markets(past, changes), market_quote.change_terms(past.terms, changes)
    currency = settings.payout.currency
    paid = f"payments {payment_sentence(payment_view(settings.payout), currency)}"
    print("\n".join([*quote_text.lines(past, terms, rows, currency, settings.run.batch_groups), paid]))


@market_app.command("simulate", context_settings=PASSED_ON)
def market_simulate(context: typer.Context) -> None:
    """Try the settings of a market on seeded populations: who works, what an epoch costs, what a false ask gains. Needs
    a checkout."""
    pass_on(context, "market simulate")
