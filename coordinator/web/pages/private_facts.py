"""Facts that the public page leaves out: the paths of this machine, and hosts. Pure."""

import re
from typing import Final

import msgspec

from echo2.coordinator.metrics.trouble_views import TroubleView

_PATH: Final = re.compile(r"(?<![\w.:/<])~?(?:/[^\s/'\"`<>(),;:]+)+/([^\s/'\"`<>(),;:]*)")
_HOST: Final = re.compile(
    r"(?<![\w.])(?:(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?|localhost:\d{2,5}|(?:[\w-]+\.)+(?!py:)[A-Za-z][\w-]*:\d{2,5})"
    r"(?![\w:])"
)


def without_places(text: str) -> str:
    """Return a text with "…/" before a file's name in place of its folders, and "…" for an address or a host with its
    port."""
    return _HOST.sub("…", _PATH.sub(r"…/\1", text))


def public_trouble(trouble: TroubleView) -> TroubleView:
    """Return the learner's troubles as the public page says them."""
    pause = trouble.paused
    return msgspec.structs.replace(
        trouble,
        waiting=without_places(trouble.waiting),
        paused=pause and msgspec.structs.replace(pause, why=without_places(pause.why)),
        set_aside=[msgspec.structs.replace(one, reason=without_places(one.reason)) for one in trouble.set_aside],
    )
