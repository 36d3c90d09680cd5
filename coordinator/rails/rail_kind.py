"""A value of payout.rail: what it needs, and how it is opened.

Rules
1. `points`, `csv` and `command` are here. The plug-in echo2-rails has `bank` and `https`: an entry point of the group
   `GROUP` has the rail's name and gives its `RailKind`.
2. `check` reads the settings alone. `check_here` also reads the files that they name; it writes nothing, and asks no
   provider.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Final, NamedTuple

from echo2.coordinator.rails import account_text
from echo2.coordinator.rails.file_rail import FileFormat
from echo2.coordinator.rails.rail import Rail
from echo2.coordinator.settings.payout_config import PayoutSection

GROUP: Final = "echo2.rails"
"""Group of entry points of plug-ins."""


def _nothing(settings: PayoutSection) -> None:
    """Check nothing."""


class RailKind(NamedTuple):
    """A kind of rail: `connect` opens one, or `file_format` is the format of a rail of files.

    `needs`: settings that may not be empty, and the meaning of each. `target`: name of the provider among those of
    this rail. `check`, `check_here`: rule 2; they raise `LocalFault`. `check_account`: raises `BadAccount`.
    """

    connect: Callable[[PayoutSection], AbstractAsyncContextManager[Rail]] | None = None
    file_format: Callable[[PayoutSection], FileFormat] | None = None
    needs: Mapping[str, str] = MappingProxyType({})
    target: Callable[[PayoutSection], str] = lambda settings: ""
    check: Callable[[PayoutSection], object] = _nothing
    check_here: Callable[[PayoutSection], object] = _nothing
    check_account: Callable[[str], None] = account_text.check
