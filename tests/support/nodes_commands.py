"""The commands `echo2-coord nodes`, run in this process."""

from click.testing import Result
from typer.testing import CliRunner

from echo2.coordinator import cli


def run_nodes(*words: object) -> Result:
    """Run `echo2-coord nodes WORDS`; return its result."""
    return CliRunner().invoke(cli.app, ["nodes", *(str(word) for word in words)])
