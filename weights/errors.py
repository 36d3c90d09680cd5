"""Errors of the weights package, by the party at fault.

    WeightsError
    ├── BadPayload     the publisher or the sending peer: malformed or contradictory bytes, or bytes above a limit
    ├── WrongBase      no fault of a peer: the local snapshot is not the one that the diff starts from
    ├── BadSnapshot    a file or folder that is no model snapshot; the message names the fix
    │   └── UnfitSnapshot  the publisher: whole, but of another model than the run's files describe
    ├── MemoryFull     no fault of a peer: the machine's memory lacks room for the present version
    ├── StoreCorrupt   the store's index is damaged; the message names the fix
    └── StoreBusy      another process holds the store

`runtime.errors.DiskFull` (this machine cannot hold the bytes; the earlier content is intact), `FileNotFoundError` and
the like pass through as they are.
"""


class Stopped(Exception):
    """The weights were not read to their end, as the caller is to end: no error."""


class WeightsError(Exception):
    """Root of every error that `weights` raises on purpose."""


class BadPayload(WeightsError):
    """An invalid payload or document, or one that needs a newer program."""


class WrongBase(WeightsError):
    """The base snapshot is not the one that the diff was computed against."""


class BadSnapshot(WeightsError):
    """Not a model snapshot, or a header that does not fit its file."""


class UnfitSnapshot(BadSnapshot):
    """A snapshot whose bytes are whole, of another model than the one that is to take it: no new copy mends that."""


class MemoryFull(WeightsError):
    """A write to a folder in the machine's memory found no room; base and log on disk are intact."""


class StoreCorrupt(WeightsError):
    """The index of the store cannot be read."""


class StoreBusy(WeightsError):
    """Another process has the store open."""
