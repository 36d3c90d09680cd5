"""The table of refusals: each code is used, and each sentence can be formatted."""

import re
import string
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from echo2.coordinator.verification.near_ties import Blamed
from echo2.coordinator.verification.verification import FORM_RULES, SCORE_RULES
from echo2.protocol.refusals import REASONS, refusal, sentence, then
from echo2.protocol.requests import Refusal

BLAMED = set(get_args(Blamed)) - {""}
USED = re.compile(r'(?:refusal|_fault|sentence|Verdict|\bDenial)\(\s*"([\w-]+)"')


def used(repository: Path) -> set[str]:
    sources = [path.read_text() for path in (repository / "coordinator").rglob("*.py")]
    return (
        {code for source in sources for code in USED.findall(source)} | FORM_RULES.keys() | SCORE_RULES.keys() | BLAMED
    )


def test_the_codes_in_use_are_those_of_the_table(repository: Path) -> None:
    assert used(repository) == set(REASONS)


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_formats_to_a_whole_sentence(code: str) -> None:
    template = REASONS[code].sentence
    fields = [name for _, name, spec, _ in string.Formatter().parse(template) if name and not spec]
    text = sentence(code, **{name: "x" * 10 for name in fields})
    assert text == "" if code == "ok" else text[0].isupper()
    assert text[-1:] in ("", ".")
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)


@pytest.mark.parametrize(
    ("code", "facts", "text"),
    {
        "drift": (
            "drift", {"sample": 1, "position": 2, "off": 0.00104, "most": 0.001}, "off by 0.00104, the most is 0.00100."
        ),
        "drift in float32": (
            "drift", {"sample": 1, "position": 2, "off": np.float32(0.00104), "most": np.float32(0.001)},
            "off by 0.00104, the most is 0.00100.",
        ),
        "drift of the median": (
            "drift-median", {"sample": 1, "off": 2.0001e-4, "most": 2e-4},
            "off by 0.00020001 in the median, the most is 0.00020000.",
        ),
        "another token": (
            "seeded-choice", {"sample": 1, "position": 2, "margin": 0.012345}, "another token, better by 0.0123 nats.",
        ),
        "a clock narrowly off": (
            "clock", {"off": 600.004, "most": 600.0},
            "expires 600.004 s away from now, the most is 600.000 s: set the clock, or say hello.",
        ),
        "a clock far off": (
            "clock", {"off": 86400.0, "most": 600.0},
            "expires 86400 s away from now, the most is 600 s: set the clock, or say hello.",
        ),
    }.values(),
)  # fmt: skip
def test_compared_numbers_are_written_with_digits_that_differ(code: str, facts: dict[str, object], text: str) -> None:
    assert sentence(code, **facts).endswith(text)


def test_only_refusals_that_may_succeed_later_say_when_to_retry() -> None:
    assert refusal("paused", retry_after=5).retry_after == 5
    with pytest.raises(ValueError, match="retry_after"):
        refusal("paused")
    with pytest.raises(ValueError, match="retry_after"):
        refusal("finished", retry_after=5)


def test_a_sentence_is_cut_to_what_the_wire_takes() -> None:
    assert len(sentence("malformed", what="x", detail="y" * 5000)) == 2000


def test_a_node_reacts_by_the_table_and_ignores_an_unknown_code() -> None:
    assert then(refusal("clock", off=601.0, most=600.0)) == "greet"
    assert then(refusal("banned", why="it sent poison")) == "end"
    assert then(Refusal(code="of-a-later-protocol", sentence="No.")) == ""
    assert not [code for code, one in REASONS.items() if one.then in ("end", "other engine", "finish") and one.retry]


def test_no_code_stands_as_a_literal_at_a_node(repository: Path) -> None:
    quoted = re.compile("|".join(f'"{code}"' for code in REASONS if "-" in code))
    quoting = [path.name for path in (repository / "node").rglob("*.py") if quoted.search(path.read_text())]
    assert not quoting
