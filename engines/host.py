"""`python -m engines.host`: the child process that holds one engine. Used by nodes, and by the coordinator's scorer.

torch is imported only when the first call asks for a device. By then the parent's environment is set, and output that a
library prints at import cannot reach the pipe.
"""

from collections.abc import Callable, Mapping
from typing import Any

from engines import registry
from engines.devices import choose
from engines.engine import Engine, EngineError
from engines.messages import CALLS, EngineCall, ProbeCall, Probed
from runtime.child import Pipe


class EngineHost:
    """The child's table of calls; each is run on one engine."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def handlers(self) -> Mapping[str, tuple[Any, Callable[[Any], Any]]]:
        """Return the table for `Pipe.serve`."""
        calls: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {call.method: (call, self.run) for call in CALLS}
        return {"probe": (ProbeCall, self.probe), **calls}

    def probe(self, call: ProbeCall) -> Probed:
        """Make an engine. A second probe makes a new one; the weights of the old one are freed."""
        row = registry.choose(call.engine)
        row.check(call.dtype)
        device = choose(call.device, row.inventory(), row.devices)
        self._engine = row.make(device.kind, call.dtype)
        engine_class = row.engine_class(device.kind, call.dtype)
        return Probed(kind=device.kind, name=device.name, why=device.why, engine_class=engine_class)

    def run(self, call: EngineCall[Any]) -> Any:
        """Run a call on the engine."""
        if self._engine is None:
            raise EngineError("no engine is chosen yet: the first call must be probe")
        return call.run(self._engine)


def main() -> None:
    """Serve until the parent goes away."""
    Pipe().serve(EngineHost().handlers())


if __name__ == "__main__":
    main()
