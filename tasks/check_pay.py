"""Check that a task pays a right answer clearly more than wrong ones, for tasks/check.py.

Rules
1. Prompts of the training split are answered with the task's own answer (its demonstration), with one of `NONSENSE`,
   with the answer that most prompts have, and with another prompt's answer where that differs.
2. Each own answer succeeds. In a task of several turns a demonstration may be a first move: where not all of them end
   their episode, only nonsense is compared.
3. The mean reward of each kind of wrong answer is at most `MOST_SHARE` of the own answers' mean, both counted from the
   least reward seen, or from 0 where that is less.
4. Of a task without demonstrations it is only known that nonsense is wrong: it succeeds at a share of at most
   `MOST_SHARE` of the prompts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Final

from echo2.tasks.check_probe import DEMONSTRATION, PROMPT, ProbedEpisode, ProbedPrompt, Question

NONSENSE: Final = ("a word", PROMPT, "no answer", "42")
"""Names of usual answers (tasks/check_probe.py), of which each prompt gets one, in rotation."""
MOST_SHARE: Final = 0.58
"""Of two answers that are equally frequent, one is right at more than 0.58 of 200 prompts in one task of forty."""
_CONSTANT: Final = "the commonest of its own answers"
_OTHERS: Final = "another prompt's answer"

Ask = Callable[[Question], ProbedPrompt]


def pay_faults(ask: Ask, size: int, most: int) -> Iterator[str]:
    """Yield a sentence for each kind of answer that is paid wrongly. `size`: prompts of the training split. `most`:
    most of them that are answered. Raises the errors of `ask`."""
    indices = [place * size // min(size, most) for place in range(min(size, most))]
    own: dict[int, ProbedEpisode] = {}
    wrong: dict[str, list[ProbedEpisode]] = defaultdict(list)
    for place, index in enumerate(indices):
        nonsense = NONSENSE[place % len(NONSENSE)]
        results = ask(Question("train", index, [DEMONSTRATION, nonsense], whole=True)).results
        wrong[nonsense].append(results[nonsense])
        if results[DEMONSTRATION].answer:
            own[index] = results[DEMONSTRATION]
    if not own:
        yield from _nonsense_faults(wrong)
        return
    if not any(played.given for played in own.values()):
        yield from _failures(own)
        _add_answers_of_others(ask, own, wrong)
    yield from _overpayments(list(own.values()), wrong)


def _add_answers_of_others(ask: Ask, own: Mapping[int, ProbedEpisode], wrong: dict[str, list[ProbedEpisode]]) -> None:
    """Play the commonest answer at each prompt, and the answer of the prompt before where that is another."""
    texts = {index: played.answer for index, played in own.items()}
    constant = Counter(texts.values()).most_common(1)[0][0]
    before = [*texts.values()][-1]
    for index, text in texts.items():
        results = ask(Question("train", index, list({constant, before}), said=True)).results
        wrong[_CONSTANT].append(results[constant])
        if before != text:
            wrong[_OTHERS].append(results[before])
        before = text


def _failures(own: Mapping[int, ProbedEpisode]) -> Iterator[str]:
    """Yield rule 2's fault."""
    failed = [index for index, played in own.items() if not played.success]
    if failed:
        first = own[failed[0]]
        yield (
            f"{len(failed)} of {len(own)} own answers do not succeed: at train {failed[0]} {first.answer[:60]!r} has "
            f"the reward {first.reward:g}{f' ({first.error})' if first.error else ''}"
        )


def _overpayments(own: Sequence[ProbedEpisode], wrong: Mapping[str, Sequence[ProbedEpisode]]) -> Iterator[str]:
    """Yield rule 3's faults."""
    rewards = {kind: [played.reward for played in several] for kind, several in wrong.items()}
    least = min(0.0, *(reward for several in rewards.values() for reward in several))
    right = mean(played.reward for played in own)
    for kind, several in rewards.items():
        if mean(several) - least > MOST_SHARE * (right - least):
            yield f"{kind} earns {mean(several):.3g} on average at {len(several)} prompts, its own answers {right:.3g}"


def _nonsense_faults(wrong: Mapping[str, Sequence[ProbedEpisode]]) -> Iterator[str]:
    """Yield rule 4's faults."""
    for kind, several in wrong.items():
        share = mean(played.success for played in several)
        if share > MOST_SHARE:
            yield f"{kind} succeeds at {share:.0%} of {len(several)} prompts"
