"""Facts that the public page leaves out: the paths of this machine, and hosts. Pure."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from echo2.coordinator.metrics.trouble_views import GuardView, TroubleView

_PATH: Final = re.compile(r"(?<![\w./<])(?:file://)?~?(?:/[^\s/'\"`<>(),;:]+)+/([^\s/'\"`<>(),;:]*)")
_HOST: Final = re.compile(
    r"\[[\w.:%-]+\]:\d{1,5}(?!\w)"  # as PyTorch and URLs write it
    r"|\('?[A-Za-z][\w-]*(?:\.[\w-]+)*'?, \d{4,5}\)"
    r"|(?<![\w.])(?:(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?|localhost:\d{2,5}"
    r"|(?:[\w-]+\.)+(?!py:)[A-Za-z][\w-]*:\d{2,5})(?![\w:])"
    r"|(?<![\w.:])(?:[0-9A-Fa-f]{1,4}:)*(?:[0-9A-Fa-f]{1,4})?::[0-9A-Fa-f:]*[0-9A-Fa-f](?![\w:])"
)


def without_places(text: str) -> str:
    """Return a text with "…/" before a file's name in place of its folders, and "…" for an address or a host with its
    port."""
    return _HOST.sub("…", _PATH.sub(r"…/\1", text))


def counts_without_places(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason; reasons that are alike without places are counted together."""
    together = Counter[str]()
    for reason, count in counts.items():
        together[without_places(reason)] += count
    return dict(together)


def public_trouble(trouble: TroubleView) -> TroubleView:
    """Return the learner's troubles as the public page says them."""
    pause = trouble.paused
    return msgspec.structs.replace(
        trouble,
        waiting=without_places(trouble.waiting),
        paused=pause and msgspec.structs.replace(pause, why=without_places(pause.why)),
        set_aside=[msgspec.structs.replace(one, reason=without_places(one.reason)) for one in trouble.set_aside],
        reasons=counts_without_places(trouble.reasons),
        episodes=counts_without_places(trouble.episodes),
    )


def public_guard(guard: GuardView) -> GuardView:
    """Return the guard as the public page says it: its sentences name tasks, and a task's name may be a path."""
    return msgspec.structs.replace(
        guard,
        rows=[msgspec.structs.replace(row, now=without_places(row.now)) for row in guard.rows],
        rollbacks=[msgspec.structs.replace(one, why=without_places(one.why)) for one in guard.rollbacks],
    )
