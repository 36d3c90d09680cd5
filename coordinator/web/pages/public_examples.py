"""Examples of what the policy says, for the public page of a run whose `web.examples` asks for them.

Rules
1. They are accepted groups, `web.examples` at most: of each the prompt, the best and the worst answer. At 0 nothing is
   read, as prompts may be private. They are the newest of versions that are leased no more: before that a group may be
   the answer of a canary, or of an audit, and whoever reads it here would know one, and could copy it.
2. A text is cut after `MOST_TEXT` characters, and characters that are not printed are escapes.
3. Each group is decoded once, and the newest are looked for every `READ_SECONDS`.
"""

from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.views import ExampleAnswer, ExampleView
from echo2.coordinator.submissions.rollouts_report import escape, tokenizer_of
from echo2.coordinator.verdicts.stored_rollouts import ShownGroup, newest_past, read_group
from echo2.tasks.task import Tokenizer

MOST_TEXT: Final = 600
READ_SECONDS: Final = 4.0


class PublicExamples:
    """The examples of a run folder; used by one thread at a time."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tokenizer: Tokenizer | None = None
        self._known: dict[bytes, ExampleView] = {}
        self._read_at, self._most = 0, 0

    def read(self, database: Database, most: int, now: int, era: int, oldest: int) -> list[ExampleView]:
        """Return at most `most` examples, the newest first. `now`: ms. `oldest`: oldest version that is leased, of
        `era`. Raises `LocalFault`, `Untrusted`."""
        if not most:
            self._known = {}
        elif most != self._most or now >= self._read_at + 1000 * READ_SECONDS:
            self._tokenizer = self._tokenizer or tokenizer_of(self._folder)
            newest = dict[bytes, ExampleView]()
            for lease in newest_past(database, most, era, oldest):
                known = self._known.get(lease)
                if (
                    known is None
                    and (group := read_group(database, self._tokenizer, lease, by_token=False)) is not None
                ):
                    known = _example(group)
                if known is not None:
                    newest[lease] = known
            self._known, self._read_at = newest, now
        self._most = most
        return list(self._known.values())


def _example(group: ShownGroup) -> ExampleView:
    return ExampleView(
        task=group.task, index=group.index, version=group.version, prompt=_text(group.prompt),
        answers=[
            ExampleAnswer(text=_text("".join(part.text for part in one.parts)), reward=one.reward, success=one.success)
            for one in group.best_and_worst
        ],
    )  # fmt: skip


def _text(text: str) -> str:
    cut = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
    return "\n".join(escape(part) for part in cut.split("\n"))
