"""Every reason is in one table, is used, and can be said."""

import re
import string
from pathlib import Path

import pytest

from coordinator.reasons import REASONS, refusal, sentence

USED = re.compile(r'(?:refusal|_fault|sentence|Verdict)\(\s*"([\w-]+)"|^    \("([\w-]+)", _\w+\),$', re.MULTILINE)


def used(repository: Path) -> set[str]:
    sources = [path.read_text() for path in (repository / "coordinator").glob("*.py") if path.name != "reasons.py"]
    return {one or two for source in sources for one, two in USED.findall(source)}


def test_every_code_that_is_used_is_in_the_table_and_the_other_way_round(repository: Path) -> None:
    assert used(repository) == set(REASONS)


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_can_be_said_in_a_whole_sentence(code: str) -> None:
    template = REASONS[code].sentence
    fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(template) if name]
    said = sentence(code, **{name: 0.5 if spec else "x" * 10 for name, spec in fields})
    assert said == "" if code == "ok" else said[0].isupper()
    assert said[-1:] in ("", ".")
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)


def test_only_what_may_succeed_later_says_when_to_retry() -> None:
    assert refusal("paused", retry_after=5).retry_after == 5
    with pytest.raises(ValueError, match="retry_after"):
        refusal("paused")
    with pytest.raises(ValueError, match="retry_after"):
        refusal("finished", retry_after=5)


def test_a_sentence_is_cut_to_what_the_wire_takes() -> None:
    assert len(sentence("malformed", what="x", detail="y" * 5000)) == 2000
