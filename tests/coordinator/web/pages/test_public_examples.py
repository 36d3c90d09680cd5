"""Examples of answers on the public page: where the setting asks for them, and as text."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.views import ExampleView
from echo2.coordinator.web import page
from echo2.coordinator.web.pages import public_examples
from echo2.coordinator.web.pages.public_examples import MOST_TEXT, PublicExamples
from tests.support import pictures
from tests.support.group_world import TEXT, World, group
from tests.support.site_visits import Drawn

HOSTILE = "<img src=x onerror=alert(1)>\u202eevil\x1b[31m"


def answered(world: World, *texts: str) -> None:
    lease = world.lease()
    world.submit(group(lease, [*texts, *["no"] * (len(lease.seeds) - len(texts))]))
    world.decide_all()


def test_the_newest_accepted_groups_are_shown_as_many_as_the_setting_says(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_examples, "tokenizer_of", lambda folder: TEXT)
    database = world.group_service.database
    for number in range(3):
        answered(world, f"answer {number}")
    examples = PublicExamples(RunFolder(tmp_path))
    assert examples.read(database, 0, 0, 1, 1) == []
    shown = examples.read(database, 2, 0, 1, 1)
    assert [one.answers[0].text for one in shown] == ["answer 2", "answer 1"]
    assert all(len(one.answers) == 2 for one in shown)
    answered(world, "answer 3")
    assert examples.read(database, 2, 3_999, 1, 1) == shown, "they are looked for every few seconds"
    assert examples.read(database, 2, 4_000, 1, 1)[0].answers[0].text == "answer 3"
    assert len(examples.read(database, 4, 4_001, 1, 1)) == 4, "another number counts at once"
    assert examples.read(database, 0, 4_002, 1, 1) == []


def test_a_group_that_another_node_may_be_asked_for_is_not_shown(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the answer of a canary, or of an audit: who reads it on the page would know one, and could copy it."""
    monkeypatch.setattr(public_examples, "tokenizer_of", lambda folder: TEXT)
    database = world.group_service.database
    answered(world, "first")
    answered(world, "second")
    assert PublicExamples(RunFolder(tmp_path)).read(database, 2, 0, 1, 0) == [], "version 0 is leased"
    assert len(PublicExamples(RunFolder(tmp_path)).read(database, 2, 0, 1, 1)) == 2
    assert len(PublicExamples(RunFolder(tmp_path)).read(database, 2, 0, 2, 0)) == 2, "of an era before"
    [newest, _] = database.all("SELECT lease FROM verdicts ORDER BY entry DESC")
    database.do(
        "INSERT INTO leases (id, node, nonce, position, era, version, sent, expires, state, document, sealed, attempt,"
        " twin) SELECT x'01', node, x'02', position, era, version, sent, expires, 'open', document, sealed, attempt,"
        " 'audit' FROM leases WHERE id = ?",
        newest,
    )
    shown = PublicExamples(RunFolder(tmp_path)).read(database, 2, 0, 1, 1)
    assert [one.answers[0].text for one in shown] == ["first"], "an audit of the second is on its way"


def test_a_text_is_cut_and_shown_as_text(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hostile:
        def encode(self, text: str) -> list[int]:
            return TEXT.encode(text)

        def decode(self, tokens: object) -> str:
            return HOSTILE + "x" * 10_000

    monkeypatch.setattr(public_examples, "tokenizer_of", lambda folder: Hostile())
    answered(world, "abc")
    shown = PublicExamples(RunFolder(tmp_path)).read(world.group_service.database, 1, 0, 1, 1)
    assert len(shown[0].prompt) < MOST_TEXT + 20
    drawn = Drawn(page.page(msgspec.structs.replace(pictures.BUSY, examples=shown)))
    assert "<img src=x" in drawn.words
    assert "\u202e" not in drawn.words
    assert "img" not in {tag for tag, _ in drawn.tags}
    assert "What the model says" in drawn.words
    assert "What the model says" not in Drawn(page.page(pictures.BUSY)).words


def test_the_folder_of_a_tasks_data_is_not_on_the_page() -> None:
    example = ExampleView(task="math:/home/ann/problems.jsonl", index=7, version=1, prompt="1+1", answers=[])
    html = page.page(msgspec.structs.replace(pictures.BUSY, examples=[example]))
    assert "math: problems.jsonl" in html
    assert "/home/ann" not in html
