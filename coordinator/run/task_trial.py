"""The commands `task ls` and `task try`: tasks that a run can name, and prompts, answers and scores of one."""

from collections.abc import Iterator
from typing import Final

from runtime.errors import LocalFault
from tasks import plugins
from tasks.check import CheckFault, opened
from tasks.check_probe import DEMONSTRATION, ProbedEpisode, ProbedPrompt, Question
from tasks.task import Split

SHOWN: Final = 2000
"""Characters of a prompt or an answer that are shown."""


def list_families() -> Iterator[str]:
    """Yield the known names, each with the package that brings it. Imports none."""
    known = plugins.families()
    width = max(len(family.name) for family in known)
    for family in known:
        yield f"{family.name:<{width}}  {family.source}"


def try_task(name: str, split: Split, number: int, answers: list[str]) -> Iterator[str]:
    """Yield the first prompts of a split, each with the task's own answer and those given, and their scores. The task
    runs in a process of its own. Raises `LocalFault`."""
    try:
        with opened(name) as (facts, ask):
            yield f"{name} version {facts.version}: {facts.train} prompts in train, {facts.heldout} in heldout"
            for index in range(min(number, facts.train if split == "train" else facts.heldout)):
                own = ask(Question(split, index, [DEMONSTRATION], whole=True))
                given = ask(Question(split, index, answers, said=True, whole=True)) if answers else ProbedPrompt()
                yield from _shown(split, index, own, given)
    except CheckFault as fault:
        raise LocalFault(str(fault)) from fault


def _shown(split: Split, index: int, own: ProbedPrompt, given: ProbedPrompt) -> Iterator[str]:
    yield f"\n{split} {index}"
    if own.error:
        yield f"  cannot be posed: {own.error}"
        return
    yield "\n".join(f"  | {row}" for row in own.prompt[:SHOWN].split("\n"))
    demonstration = own.results[DEMONSTRATION]
    if demonstration.answer or demonstration.error:
        yield f"  its own answer {_scored(demonstration)}"
    for result in given.results.values():
        yield f"  your answer {_scored(result)}"


def _scored(result: ProbedEpisode) -> str:
    said = f"{result.answer[:SHOWN]!r}"
    if result.error or result.endless:
        return f"{said} fails: {result.error or 'the episode does not end'}"
    replies = "".join(f", then {reply!r}" for reply in result.given)
    return f"{said}{replies}: reward {result.reward:g}{', success' if result.success else ''}"
