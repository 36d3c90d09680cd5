"""The environment of its own in which vLLM may live: where it is, and whether it is of this build.

vLLM pins a transformers that is older than the one which the other engines use, and a PyTorch: it is best kept apart.
`echo2-node engine install vllm` makes the environment (node/control/engine_install.py), with the same echo2 in it; the
process of this engine then runs by that environment's Python (engines/process/process.py, `aim`). Where vLLM is
installed beside echo2 itself, that is used instead.

1. The environment counts once `MARK` is written, which comes last: one whose making was interrupted is none.
2. It is used only where its echo2 is this one, by version and source: parent and child speak by messages that change.
"""

import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from echo2.runtime.installation import source_of

FOLDER_VARIABLE: Final = "ECHO2_ENGINES"
"""Names another folder for the environments of engines than that of the user's data."""
MARK: Final = "echo2-engine.json"
NAME: Final = "vllm"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment was made with. `echo2`: `own_build`. `vllm`: its distribution and version."""

    echo2: str
    vllm: str


def folder() -> Path:
    """Return where the environment is, or would be."""
    named = os.environ.get(FOLDER_VARIABLE)
    engines = Path(named) if named else Path(platformdirs.user_data_dir("echo2", appauthor=False)) / "engines"
    return engines / NAME


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def mark() -> Mark | None:
    """Return what the environment was made with; None: there is none, or it is not whole."""
    try:
        present = msgspec.json.decode((folder() / MARK).read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None
    return present if os.access(python_of(folder()), os.X_OK) else None


def own_build() -> str:
    """Name this echo2, by version and source."""
    try:
        distribution = importlib.metadata.distribution("echo2")
    except importlib.metadata.PackageNotFoundError:
        return f"of {Path(__file__).resolve().parents[2]}"
    source = source_of(distribution.read_text("direct_url.json"))
    return " ".join(filter(None, (distribution.version, source.place, source.commit)))


def missing() -> list[str]:
    """Return what is lacking for the environment to be used; empty: nothing."""
    present = mark()
    if present is None:
        return [NAME]
    own = own_build()
    return [] if present.echo2 == own else [f"an environment with this echo2 ({own}; its own has {present.echo2})"]


def python() -> str | None:
    """Return the Python by which the engine's process runs; None: this one, which has vLLM itself, or there is none."""
    if importlib.util.find_spec(NAME) is not None or missing():
        return None
    return str(python_of(folder()))
