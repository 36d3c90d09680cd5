"""Facts that the public page leaves out: the paths of this machine, hosts, and what a web address carries beside its
path. Pure.

Words of the operator, as in a pause, may name a public web address: it stays, without user, password and query.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from echo2.coordinator.metrics.trouble_views import GuardView, TroubleView
from echo2.coordinator.metrics.views import TaskRow

_PATH: Final = re.compile(r"(?<![\w./<])(?:file://)?~?(?:/[^\s/'\"`<>(),;:]+)+/([^\s/'\"`<>(),;:]*)")
_QUERY: Final = re.compile(r"(?<=[\w/.-])\?[^\s'\"`<>=]{1,99}=[^\s'\"`<>]*")
_USER: Final = re.compile(r"(?<=://)[^\s/@'\"]{1,300}@")
_LABEL: Final = r"[\w-]{1,63}"
_HOST: Final = re.compile(
    r"(?<![\w.])(?:"
    r"(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?"
    rf"|localhost:\d{{2,5}}|(?:{_LABEL}\.){{1,9}}(?!py:)[A-Za-z][\w-]{{0,62}}:\d{{2,5}}"
    rf"|(?<=://)(?:{_LABEL}|(?:{_LABEL}\.){{1,9}}(?:internal|intranet|local|localdomain|lan|home|corp))"
    r"(?=[:/?#'\")\s]|\Z)(?::\d{1,5})?"
    r"|\[[\w.:%-]{1,255}\]:\d{1,5}|(?<=host=)'[^'\s]{1,255}'"
    r"|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}"
    r")(?![\w:])"
    r"|(?<![\w.:])(?:[0-9A-Fa-f]{1,4}:){0,6}(?:[0-9A-Fa-f]{1,4})?::(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{1,4}(?![\w:])"
    r"|\('?[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,9}'?, \d{4,5}\)"
)


@lru_cache(maxsize=1024)
def without_places(text: str) -> str:
    """Return a text with "…/" before a file's name in place of its folders, "…" for an address, or for a host with its
    port or of a private network, and web addresses without user and query."""
    return _HOST.sub("…", _PATH.sub(r"…/\1", _QUERY.sub("?…", _USER.sub("", text))))


def public_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason as the public page says them: reasons that differ in a place alone are one."""
    together = Counter[str]()
    for reason, count in counts.items():
        together[without_places(reason)] += count
    return dict(together)


def public_tasks(rows: Iterable[TaskRow]) -> list[TaskRow]:
    """Return the rows of tasks as the public page says them."""
    return [msgspec.structs.replace(row, failed=public_counts(row.failed)) for row in rows]


def public_trouble(trouble: TroubleView) -> TroubleView:
    """Return the learner's troubles as the public page says them."""
    pause = trouble.paused
    return msgspec.structs.replace(
        trouble,
        waiting=without_places(trouble.waiting),
        paused=pause and msgspec.structs.replace(pause, why=without_places(pause.why)),
        set_aside=[msgspec.structs.replace(one, reason=without_places(one.reason)) for one in trouble.set_aside],
        reasons=public_counts(trouble.reasons),
        episodes=public_counts(trouble.episodes),
    )


def public_guard(guard: GuardView) -> GuardView:
    """Return the guard as the public page says it: its sentences name tasks, and a task's name may be a path."""
    return msgspec.structs.replace(
        guard,
        rows=[msgspec.structs.replace(row, now=without_places(row.now)) for row in guard.rows],
        rollbacks=[msgspec.structs.replace(one, why=without_places(one.why)) for one in guard.rollbacks],
    )
