"""The lines of `echo2-node update`: this build and its source, the command of an update, and what the run asks for."""

from pathlib import Path

from echo2.engines.vllm import own_environment
from echo2.node.errors import BadConfig
from echo2.node.home import invite_of_joined_run, run_folder
from echo2.node.newer_build import update_request
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import RunSpec
from echo2.protocol.numbers import SPOKEN_NUMBERS, build, spoken
from echo2.runtime.installation import (
    NEWER_ARCHIVE,
    NEWER_FILE,
    NO_SOURCE,
    Installation,
    RunsUninstalled,
    read_installation,
)

_PLACES = {
    NEWER_FILE: f"{NEWER_FILE} stands for the path of a newer wheel",
    NEWER_ARCHIVE: f"{NEWER_ARCHIVE} stands for the path of a newer source archive (.tar.gz)",
    NO_SOURCE: f"{NO_SOURCE} stands for a wheel, a folder with the sources, or git+ADDRESS",
    "FOLDER_OF_THE_CONTAINERFILE": "FOLDER_OF_THE_CONTAINERFILE stands for a folder with newer sources",
}
"""Place in a command -> its explanation."""


def lines(home: Path) -> list[str]:
    """Return the lines of the report."""
    try:
        own = _of_installation(read_installation())
    except RunsUninstalled as error:
        own = [str(error)]
    return [f"this build   {build()}", *own, *_of_engines(), f"the run      {_of_run(home)}"]


def _of_engines() -> list[str]:
    """Return the lines of the environment of an engine's own; none where there is no such environment."""
    mark = own_environment.mark()
    if mark is None:
        return []
    again = "" if mark.echo2 == own_environment.own_build() else ": of another echo2, so it is not used"
    return [
        f"vllm         {mark.vllm}, in {own_environment.folder()}{again}",
        "update       echo2-node engine install vllm    # after an update of this build",
    ]


def _of_installation(own: Installation) -> list[str]:
    command = own.update_command()
    places = [f"             ({words})" for place, words in _PLACES.items() if place in command]
    return [f"installed    by {own.describe()}", f"update       {command}", *places]


def _of_run(home: Path) -> str:
    """Return what the run that was joined last asks of a build. Its RunSpec is read as it is stored, unverified."""
    try:
        folder = run_folder(home, invite_of_joined_run(home).run)
    except BadConfig:
        return f"none was joined in {home}"
    if refused := update_request(folder):
        return f"asks for a newer build: {refused}"
    try:
        spec = decode(decode_unverified((folder / "trust" / "runspec").read_bytes()).payload, RunSpec)
    except (OSError, Malformed):
        return "has not answered yet: a node that runs asks it (`echo2-node status` shows whether one does)"
    low, high = spec.protocols
    theirs = f"{spec.name} speaks {spoken(low, high)}"
    if SPOKEN_NUMBERS[0] <= high and SPOKEN_NUMBERS[1] >= low:
        return f"{theirs}, and so does this build: no update is needed for it"
    return f"{theirs}, this build {spoken(*SPOKEN_NUMBERS)}: update"
