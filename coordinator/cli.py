"""`echo2-coord`: the operator's commands, by subject (coordinator/command_line).

Each command's body imports its modules itself, so that `--help` is fast.
"""

import typer

from echo2.coordinator.command_line.backup_app import backup_app
from echo2.coordinator.command_line.command_options import PROGRAM
from echo2.coordinator.command_line.keys_app import keys_app
from echo2.coordinator.command_line.ledger_app import ledger_app
from echo2.coordinator.command_line.making_app import config_app, making_app
from echo2.coordinator.command_line.market_app import market_app
from echo2.coordinator.command_line.nodes_app import nodes_app
from echo2.coordinator.command_line.payout_app import payout_app
from echo2.coordinator.command_line.policy_app import policy_app
from echo2.coordinator.command_line.running_app import page_app, running_app, track_app
from echo2.coordinator.command_line.service_commands import service_commands
from echo2.coordinator.command_line.task_app import task_app
from echo2.coordinator.command_line.trials_app import trials_app
from echo2.coordinator.command_line.verdict_app import rollouts_app, verdict_app
from echo2.runtime.closed_pipe import exit_on_closed_pipe
from echo2.runtime.exit_codes import Exit
from echo2.runtime.own_memory import keep_private

app = typer.Typer(
    name=PROGRAM,
    help="Run a reinforcement-learning run whose rollouts come from volunteers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(making_app)
app.add_typer(running_app)
app.add_typer(backup_app)
app.add_typer(trials_app)
app.add_typer(config_app, name="config")
app.add_typer(keys_app, name="keys")
app.add_typer(nodes_app, name="nodes")
app.add_typer(page_app, name="page")
app.add_typer(policy_app, name="policy")
app.add_typer(rollouts_app, name="rollouts")
app.add_typer(ledger_app, name="ledger")
app.add_typer(verdict_app, name="verdict")
app.add_typer(task_app, name="task")
app.add_typer(payout_app, name="payout")
app.add_typer(market_app, name="market")
app.add_typer(track_app, name="track")
app.add_typer(service_commands, name="service")


def main() -> None:
    """Run the command line."""
    keep_private()
    with exit_on_closed_pipe(Exit.CLOSED_PIPE):
        app()


if __name__ == "__main__":
    main()
