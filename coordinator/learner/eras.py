"""Decide whether a learner resumes its era or begins a new one. No other module decides this. Pure, no torch.

Rules
1. A checkpoint covers the last published version if that is the checkpoint's own export, or the version published
   before it, and if the journal names no version beyond it that could not be made again. Then no version after the
   checkpoint was published or signed, and the learner resumes there, in the same era. Its step may fall, (era, version)
   cannot. A checkpoint here is one with the journal behind it (learner/checkpoints/replay.py).
2. Otherwise published steps are undone: an older checkpoint replaces a damaged one, the journal is given up, or the
   learner's folder, the store or both are lost. A new era begins: max(last era + 1, unix seconds). The last era is the
   newest in run.sqlite.
3. The new era starts at the step above every known version, with the weights of the newest one: the checkpoint's, or
   those published last where they are newer. The optimiser is the checkpoint's; without a checkpoint it is a new one.
   The weights are exported at once as the version of that number, in full for new nodes and as a diff from the version
   published last. If checkpoint and version are lost, version 0 of the new era is the base.
4. A new era begins without draws: a group of an earlier era can never be drawn
   (coordinator/verdicts/replay_buffer.py).
5. An order of main to go back to an earlier version begins a new era by rule 3, with that version's weights.
6. A kill before the new era's checkpoint is complete leaves the old state, and the next start begins a later era. A
   kill after that leaves an unpublished export: rule 1 covers it, and it is published in its era. The checkpoint names
   the order of rule 5, which is then not obeyed again.
7. After a whole run was restored from a backup, the other coordinator may have published more than is known here. So a
   checkpoint of an era before the restore begins a new one by rule 3, whatever it covers.
"""

from collections.abc import Sequence
from typing import NamedTuple

FIRST_ERA = 1


class KnownVersion(NamedTuple):
    """An exported or published version, and its content root."""

    version: int
    root: bytes


def covers(
    published: KnownVersion | None, export: KnownVersion | None, before: KnownVersion | None, journalled: int = -1
) -> bool:
    """Tell whether a checkpoint covers the last `published` version (rule 1). `export`: the checkpoint's export.
    `before`: the version published before that export. If `published` is None, `before` must be None too. `journalled`:
    the newest version that the journal names."""
    if journalled > (export.version if export else -1):
        return False
    return before is None if published is None else published in (export, before)


def is_behind(published: KnownVersion | None, export: KnownVersion | None) -> bool:
    """Tell whether steps are lost that led to the last `published` version. `export`: the checkpoint's."""
    return published is not None and (export is None or published.version > export.version)


def next_era(last: int, now: float) -> int:
    """Return the number of a new era. `last`: the newest known era. `now`: seconds since the Unix epoch."""
    return max(last + 1, int(now))


def first_version(known: Sequence[KnownVersion | None]) -> int:
    """Return the number of a new era's first version: above all `known` ones, so that no number is used twice."""
    return 1 + max((one.version for one in known if one is not None), default=-1)
