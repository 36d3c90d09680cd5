"""An engine of the operator's own for a command: started, with a model loaded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from echo2.engines.process.process import EngineProcess
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault


@asynccontextmanager
async def loaded_engine(folder: Path, weights: Path, *, name: str) -> AsyncIterator[EngineProcess]:
    """Yield an engine with a model. `folder`: folder with config.json. `weights`: one file. `name`: name of the
    process, in logs. Raises `LocalFault` where they cannot be loaded."""
    async with EngineProcess(name=name) as engine:
        try:
            await engine.probe()
            await engine.load(folder, weights)
        except (ChildError, ChildDied) as error:
            raise LocalFault(f"{weights} cannot be loaded as weights of {folder}: {error}") from error
        yield engine
