"""Stored rollouts as text for a terminal. Every text of a rollout stands behind a bar, so that it can imitate nothing
else, and characters that are not printed are written as escapes."""

from collections.abc import Iterator

from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import model_folder, setup
from echo2.coordinator.submissions.verdict_commands import lease_of
from echo2.coordinator.verdicts.stored_rollouts import ShownAnswer, ShownGroup, Wanted, list_groups, read_group
from echo2.p2p.identity import peer_id
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import minute
from echo2.tasks.task import Tokenizer

SHORT = 100
"""Most characters of a text in a list."""


def find_groups(place: RunFolder, wanted: Wanted, *, by_token: bool = False) -> Iterator[ShownGroup]:
    """Return the stored groups of a run folder that match, also while its coordinator runs. `by_token`: see
    `read_group`. Raises `LocalFault`, `Untrusted`."""
    tokenizer = tokenizer_of(place)
    with Database.read(place.database) as database:
        yield from list_groups(database, tokenizer, wanted, by_token=by_token)


def group_of(place: RunFolder, lease: str) -> ShownGroup:
    """Return the stored group of a lease. Raises `LocalFault`, `Untrusted`."""
    named, tokenizer = lease_of(lease), tokenizer_of(place)
    with Database.read(place.database) as database, database.reading():
        group = read_group(database, tokenizer, named)
    if group is None:
        raise LocalFault(
            f"the tokens of {lease} are not stored: it is unknown, undecided, older than 24 hours, or beyond "
            "store.rollout_bytes; `echo2-coord rollouts ls` lists those that are"
        )
    return group


def brief_text(group: ShownGroup) -> str:
    """Return a group as a few lines: what it is, prompt, best and worst answer."""
    parts = [("prompt", group.prompt), *((_mark(one), _text(one)) for one in group.best_and_worst)]
    return "\n".join([_head(group), *(f"  {label:>8} | {_cut(text)}" for label, text in parts)])


def full_lines(group: ShownGroup, sample: int | None) -> list[str]:
    """Return a group as lines: its prompt and all answers, or one answer with its tokens. Raises `LocalFault`."""
    said = [_head(group), f"  node {group.node}, {group.verdict} {minute(group.at)} ({group.code})", "", "  prompt"]
    said += _lines(group.prompt)
    if sample is None:
        for answer in group.answers:
            said += ["", f"  answer {answer.sample}, reward {_mark(answer)}", *_parts(answer)]
        return said
    if sample >= len(group.answers):
        raise LocalFault(f"the group has the answers 0 to {len(group.answers) - 1}, and no {sample}")
    answer = group.answers[sample]
    said += ["", f"  answer {sample}, reward {_mark(answer)}", *_parts(answer), "", "  probability, token"]
    return said + [f"  {probability:11.4g} | {_cut(repr(text)[1:-1])}" for text, probability in answer.tokens]


def explain_none(place: RunFolder, wanted: Wanted) -> str:
    """Return why nothing is listed, as a sentence."""
    if wanted == Wanted(order=wanted.order, most=wanted.most):
        return "no group is stored: none was decided in the last 24 hours, or all went beyond store.rollout_bytes"
    of_node = "" if wanted.node is None else f" of {peer_id(wanted.node)}"
    return f"no stored group{of_node} matches: tokens are stored for 24 hours, or up to store.rollout_bytes"


def tokenizer_of(place: RunFolder) -> Tokenizer:
    """Return the tokenizer of a run. Raises `LocalFault`, `Untrusted`."""
    _, _, _, spec = setup.read_documents(place)
    return model_folder.tokenizer(place.model, spec.ends)


def _head(group: ShownGroup) -> str:
    drawn = "" if group.step is None else f", learned from in step {group.step}"
    reward = "–" if group.reward is None else f"{group.reward:.3g}"
    return (
        f"{group.lease}  version {group.version}{drawn}, mean reward {reward}, {group.task} {group.index}, "
        f"by {_cut(group.name)}"
    )


def _mark(answer: ShownAnswer) -> str:
    return "–" if answer.reward is None else f"{answer.reward:.3g}{' ✓' if answer.success else ''}"


def _text(answer: ShownAnswer) -> str:
    return " ".join(part.text for part in answer.parts)


def _parts(answer: ShownAnswer) -> Iterator[str]:
    for part in answer.parts:
        if part.by == "task":
            yield "    the task answers"
        yield from _lines(part.text)


def _lines(text: str) -> list[str]:
    return [f"    | {escape(one)}" for one in text.split("\n")]


def _cut(text: str) -> str:
    one = escape(" ".join(text.split()))
    return one if len(one) <= SHORT else one[: SHORT - 1] + "…"


def escape(text: str) -> str:
    """Return a text in which characters that are not printed are escapes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
