"""The processes of a benchmark's run: one that ends too early ends the benchmark at once, with its last lines."""

from collections.abc import Iterable

from echo2.coordinator.demo.processes import ProcessFault, ProcessGroup


class Crew(ProcessGroup):
    """A group of processes. Each fault says which process ended, and its last lines."""

    def check(self, may_end: Iterable[str] = ()) -> None:
        """See `ProcessGroup`."""
        try:
            super().check(may_end)
        except ProcessFault as fault:
            raise self._told(fault) from None

    def fault(self, sentence: str, *names: str) -> ProcessFault:
        """Return a fault with the last lines of the processes that explain it."""
        return self._told(ProcessFault(sentence, names))

    def _told(self, fault: ProcessFault) -> ProcessFault:
        lines = [f"{name}: {text_line}" for name in fault.names for text_line in self.tail(name)]
        return ProcessFault("\n".join([str(fault), *lines]), fault.names)
