"""Formatting of numbers for people."""

from collections.abc import Callable

import pytest

from echo2.coordinator.web import formatting
from echo2.coordinator.web.charts import percent


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (percent, 0.0345, "3.5 %"),
        (percent, 0.65, "65 %"),
        (percent, 0.0, "0 %"),
        (percent, 1.0, "100 %"),
        (formatting.mark_commands, "`a` <b> `", "<code>a</code> &lt;b&gt; `"),
        (formatting.count, 1234567, "1,234,567"),
        (formatting.count, 12_345_678, "12.3 M"),
        (formatting.short, 567_936, "568 k"),
        (formatting.short, 999.4, "999"),
        (formatting.short, 999.7, "1 k"),
        (formatting.short, 999_999, "1 M"),
        (formatting.short, 5e12, "5 T"),
        (formatting.duration, 4.24, "4.2 s"),
        (formatting.duration, 190, "3 min 10 s"),
        (formatting.duration, 86400, "1 d"),
        (formatting.duration, 86400 + 61, "1 d"),
        (formatting.duration, -3, "0.0 s"),
        (formatting.ago, 4.9, "now"),
        (formatting.ago, 61, "1 min ago"),
        (formatting.times, 42.3, "42 ×"),
        (formatting.times, 3.62, "3.6 ×"),
        (formatting.points, 0.484, "+48 points"),
        (formatting.points, -0.05, "−5 points"),
        (formatting.clip_identity, "12D3KooWQ01fWk", "12D3…Q01fWk"),
        (formatting.clip_identity, "short", "short"),
        (
            formatting.project_address,
            "uv tool install 'echo2 @ git+https://git.example/a/echo2.git@1f'",
            "https://git.example/a/echo2",
        ),
        (formatting.project_address, "uv tool install 'echo2 @ https://a.example/echo2-0.1.0.tar.gz'", ""),
        (formatting.project_address, "uv tool install .    # in a clone of echo2", ""),
    ],
)
def test_numbers_are_formatted_for_people(write: Callable[[object], str], value: object, text: str) -> None:
    assert write(value) == text


def test_moments_have_fractions_of_a_second() -> None:
    said = {0: "0 ms", 0.0849: "85 ms", 0.9996: "1 s", 1.2356: "1.24 s", 61.0: "1 min 1 s"}
    assert {value: formatting.moment(value) for value in said} == said
