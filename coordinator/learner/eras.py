"""When a learner goes on where it stood, and when it begins a new era. The one place for this rule; pure, no torch.

Rules
1. A checkpoint covers the last published version if it is the checkpoint's own export, or the version that was
   published before that one. Then nobody saw what comes after the checkpoint: the learner goes on there, in the same
   era. Its step may fall, (era, version) cannot.
2. Otherwise steps are undone that others have seen: the newest checkpoint was damaged and an older one is taken, the
   learner's folder is gone, or the store is, or both are. A new era begins: max(last era + 1, unix seconds). The last
   era is the newest that run.sqlite knows.
3. The new era starts at the step above every version known, with the weights that are there: the checkpoint's, or those
   published last and a new optimiser where there is no checkpoint. They are exported at once as the version of that
   number, whole for newcomers and as a diff from the version published last, whose holders follow. Where both are gone
   the base is version 0 of the new era.
4. Nothing is drawn yet in a new era: a group of an earlier one can never be drawn
   (coordinator/rollouts/replay_buffer.py).
5. A kill before the new era's checkpoint is whole leaves the old state, and the next start begins a later era. A kill
   after it leaves an export that nobody has published: rule 1 covers it, and it is published in its era.
"""

from collections.abc import Sequence
from typing import NamedTuple

FIRST_ERA = 1


class KnownVersion(NamedTuple):
    """A version that was made or published, and its content root."""

    version: int
    root: bytes


def covers(published: KnownVersion | None, export: KnownVersion | None, before: KnownVersion | None) -> bool:
    """Return whether a checkpoint covers the last `published` version (rule 1). `export`: what the checkpoint exports.
    `before`: the version published before that one. Without any published version there must not have been one."""
    return before is None if published is None else published in (export, before)


def next_era(last: int, now: float) -> int:
    """Return the number of a new era. `last`: the newest era known. `now`: seconds since the Unix epoch."""
    return max(last + 1, int(now))


def first_version(known: Sequence[KnownVersion | None]) -> int:
    """Return the number with which a new era begins: above all that are `known`, so that none is used twice."""
    return 1 + max((one.version for one in known if one is not None), default=-1)
