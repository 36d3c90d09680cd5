"""The GGUF file of an exported version, for llama.cpp and programs built on it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import gguf_export
from echo2.engines.llamacpp.gguf_file import Value
from echo2.engines.llamacpp.gguf_vocabulary import SpecialTokens
from echo2.protocol.authority import RunSpec
from echo2.runtime.errors import LocalFault


class PlannedFile:
    """GGUF file of a version before its weights are there. `name`: name of the file. Raises `LocalFault` for a model of
    which none can be written."""

    def __init__(self, base: Path, spec: RunSpec, version: int, template: str | None) -> None:
        config = json.loads((base / "config.json").read_bytes())
        begin, pad = (config.get(f"{name}_token_id") for name in ("bos", "pad"))
        ids = {"begin": begin, "pad": pad}
        self._special = SpecialTokens(
            (spec.eos, *spec.other_ends), **{name: one for name, one in ids.items() if isinstance(one, int)}
        )
        with _faults():
            keys = gguf_export.describe(base, self._special, template)
        self._keys: dict[str, Value] = {**keys, "general.name": spec.name, "general.version": str(version)}
        self.name = f"{re.sub(r'[^A-Za-z0-9.]+', '-', spec.name).strip('-.') or 'model'}-v{version}.gguf"

    def write(self, folder: Path) -> None:
        """Write it from the weights in a folder, beside them. Raises `LocalFault`, `WeightsError`."""
        with _faults():
            gguf_export.write(folder, folder / self.name, self._keys, self._special)


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        raise LocalFault(f"no GGUF file of this model: {error}") from error
