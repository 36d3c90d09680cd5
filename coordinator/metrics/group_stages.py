"""Take the way of the groups learned lately apart: from the publication of their version to their draw. Pure.

Rules
1. Seven stages follow each other: a version is published, the node holds it, gets a lease of it, begins the group in
   its engine, has generated it, the coordinator receives it, judges it, and the learner draws it. A stage is named by
   its end.
2. Publication, lease, receipt, verdict and draw are on the coordinator's clock. When a node held the version, it
   acknowledged; when it began the group and had generated it, it states with the group, counted from the lease's
   arrival. So the way of the lease to the node counts as part of the group's way back.
3. A node can state anything. Its times are clamped to those of the coordinator on both sides, so that it can move time
   between stages next to each other, and only for its own groups. No decision depends on them.
4. A stage of which an end is not known is left out for that group: its node joined after the publication, or states
   nothing. Each stage reports over how many groups it is measured.
5. Of each stage there are the median and the mean. Medians of stages do not add up to that of the whole where groups
   differ; means do, over groups of which every end is known. So the largest part is that of the largest mean over such
   groups, and is compared with their whole; where there are none yet, with that of all.
6. A step is the median time between two draws for steps that follow each other.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final, NamedTuple

from echo2.coordinator.metrics.views import StagesView, StageView

MEANINGS: Final = {
    "held": "the node fetches and loads the version",
    "leased": "the node has the version, and works on other groups or waits for the lease",
    "begun": "the group waits at the node for a place in the engine",
    "generated": "the engine generates the group",
    "received": "the group is on its way to the coordinator",
    "judged": "the group waits for its verdict",
    "drawn": "the judged group waits for the learner's next batch",
}
"""By the name of a stage, what happens in it."""


class GroupTimes(NamedTuple):
    """The times of a group that the learner drew for `step`, ms. `waited`, `took`: as in the Submission. None: not
    known."""

    step: int
    published: int
    loaded: int | None
    leased: int
    waited: int | None
    took: int | None
    received: int
    judged: int
    drawn: int


def stages(groups: Sequence[GroupTimes]) -> StagesView:
    if not groups:
        return StagesView()
    step = _step_seconds(groups)
    known = [group for group in groups if len(list(_stages_of(group))) == len(MEANINGS)] or groups
    largest = max(_parts(known, step), key=lambda part: part.mean_seconds)
    return StagesView(
        groups=len(groups),
        step_seconds=step,
        whole=_whole(groups, step),
        parts=_parts(groups, step),
        largest=largest.name,
        sentence=_sentence(largest, _whole(known, step)),
    )


def _parts(groups: Sequence[GroupTimes], step: float | None) -> list[StageView]:
    seconds = dict[str, list[float]]()
    for group in groups:
        for name, spent in _stages_of(group):
            seconds.setdefault(name, []).append(spent)
    return [_view(name, seconds[name], step) for name in MEANINGS if name in seconds]


def _whole(groups: Sequence[GroupTimes], step: float | None) -> StageView:
    return _view("whole", [(group.drawn - group.published) / 1000 for group in groups], step)


def _stages_of(group: GroupTimes) -> Iterator[tuple[str, float]]:
    """Yield (name, seconds) of each stage of which both ends are known."""
    loaded = None if group.loaded is None else min(max(group.loaded, group.published), group.leased)
    generated = None if group.took is None else min(group.leased + group.took, group.received)
    begun = None if group.waited is None or generated is None else min(group.leased + group.waited, generated)
    ends = (group.published, loaded, group.leased, begun, generated, group.received, group.judged, group.drawn)
    for name, (first, last) in zip(MEANINGS, pairwise(ends), strict=True):
        if first is not None and last is not None:
            yield name, max(0, last - first) / 1000


def _step_seconds(groups: Sequence[GroupTimes]) -> float | None:
    """Return the median time of a step; None while no two steps that follow each other are known."""
    draws = sorted({group.step: group.drawn for group in groups}.items())
    times = [after - before for (one, before), (other, after) in pairwise(draws) if other == one + 1]
    return median(times) / 1000 if times and median(times) > 0 else None


def _view(name: str, seconds: Sequence[float], step: float | None) -> StageView:
    typical, mean = median(seconds), fmean(seconds)
    return StageView(
        name=name,
        meaning=MEANINGS.get(name, ""),
        groups=len(seconds),
        seconds=typical,
        steps=None if step is None else typical / step,
        mean_seconds=mean,
        mean_steps=None if step is None else mean / step,
    )


def _sentence(largest: StageView, whole: StageView) -> str:
    return f"The largest part is on average {_length(largest)} of {_length(whole)}: {largest.meaning}."


def _length(stage: StageView) -> str:
    seconds = f"{stage.mean_seconds:.1f} s"
    return seconds if stage.mean_steps is None else f"{stage.mean_steps:.2f} steps ({seconds})"
