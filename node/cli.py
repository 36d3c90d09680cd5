"""The command line `echo2-node`, by subject (node/command_line).

A command imports the modules that compute or connect only when it runs, so that `--help` is fast.
"""

from pathlib import Path

import typer

from echo2.node.command_line.machine_commands import engine_app, machine_app
from echo2.node.command_line.node_answers import config_of
from echo2.node.command_line.node_options import PROGRAM, errors_reported
from echo2.node.command_line.record_commands import keys_app, payout_app, receipts_app, record_app
from echo2.node.command_line.setting_commands import config_app, privacy_app
from echo2.node.command_line.work_commands import work_app
from echo2.runtime.closed_pipe import exit_on_closed_pipe
from echo2.runtime.exit_codes import Exit
from echo2.runtime.own_memory import keep_private
from echo2.runtime.service_app import service_app
from echo2.runtime.service_unit import Service

app = typer.Typer(
    name=PROGRAM, help="Give this machine's idle time to a run, and be credited for it.", no_args_is_help=True,
    pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None,
)  # fmt: skip


def _service(home: Path | None) -> Service:
    from echo2.node.control.node_service import service_of

    return service_of(config_of(home=home))


app.add_typer(work_app)
app.add_typer(machine_app)
app.add_typer(record_app)
app.add_typer(receipts_app, name="receipts")
app.add_typer(keys_app, name="keys")
app.add_typer(privacy_app, name="privacy")
app.add_typer(config_app, name="config")
app.add_typer(payout_app, name="payout")
app.add_typer(engine_app, name="engine")
app.add_typer(service_app(PROGRAM, _service, errors_reported), name="service")


def main() -> None:
    """Run the command line: the entry point of the distribution."""
    keep_private()
    with exit_on_closed_pipe(Exit.CLOSED_PIPE):
        app()


if __name__ == "__main__":
    main()
