"""The commands `task ls` and `task try`: tasks that a run can name, and prompts, answers and scores of one."""

from collections.abc import Iterator
from typing import Final

from echo2.runtime.errors import LocalFault
from echo2.tasks import plugins
from echo2.tasks.check import CheckFault, open_probe
from echo2.tasks.check_probe import DEMONSTRATION, ProbedEpisode, ProbedPrompt, Question
from echo2.tasks.task import Split

SHOWN_CHARACTERS: Final = 2000
"""Characters of a prompt or an answer that are shown."""


def list_families() -> Iterator[str]:
    """Yield the known names, each with the package that brings it, and what to do before its use. Imports none."""
    known = plugins.families()
    width = max(len(family.name) for family in known)
    for family in known:
        yield f"{family.name:<{width}}  {family.source}{f', to be installed: {family.lacks}' if family.lacks else ''}"


def try_task(name: str, split: Split, number: int, answers: list[str]) -> Iterator[str]:
    """Yield the first prompts of a split, each with the task's own answer and those given, and their scores. The task
    runs in a process of its own. Raises `LocalFault`."""
    try:
        with open_probe(name) as (facts, ask):
            yield f"{name} version {facts.version}: {facts.train} prompts in train, {facts.heldout} in heldout"
            yield from facts.remarks
            indices, unposed = range(min(number, facts.train if split == "train" else facts.heldout)), 0
            played = list[ProbedEpisode]()
            for index in indices:
                own = ask(Question(split, index, [DEMONSTRATION], whole=True))
                given = ask(Question(split, index, answers, said=True, whole=True)) if answers else ProbedPrompt()
                results = [*_results("its own answer", own), *_results("your answer", given)]
                yield from _format_results(split, index, own, results)
                unposed += bool(own.error)
                played += [result for _, result in results]
            if unposed == len(indices):
                raise LocalFault(f"{name} poses none of these prompts: {own.error}")
            if played and all(_why_failed(result) for result in played):
                raise LocalFault(f"{name} gives none of these answers a score: {_why_failed(played[-1])}")
    except CheckFault as fault:
        raise LocalFault(str(fault)) from fault


def _results(whose: str, asked: ProbedPrompt) -> list[tuple[str, ProbedEpisode]]:
    """Return the episodes of a prompt, but for that of a demonstration which the task does not have."""
    return [
        (whose, result)
        for name, result in asked.results.items()
        if name != DEMONSTRATION or result.answer or result.error
    ]


def _format_results(
    split: Split, index: int, own: ProbedPrompt, results: list[tuple[str, ProbedEpisode]]
) -> Iterator[str]:
    yield f"\n{split} {index}"
    if own.error:
        yield f"  cannot be posed: {own.error}"
        return
    yield "\n".join(f"  | {row}" for row in own.prompt[:SHOWN_CHARACTERS].split("\n"))
    for whose, result in results:
        yield f"  {whose} {_format_score(result)}"


def _why_failed(result: ProbedEpisode) -> str:
    return result.error or ("the episode does not end" if result.endless else "")


def _format_score(result: ProbedEpisode) -> str:
    said = f"{result.answer[:SHOWN_CHARACTERS]!r}"
    if fault := _why_failed(result):
        return f"{said} fails: {fault}"
    replies = "".join(f", then {reply!r}" for reply in result.given)
    return f"{said}{replies}: reward {result.reward:g}{', success' if result.success else ''}"
