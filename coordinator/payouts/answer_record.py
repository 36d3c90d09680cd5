"""The operator's own record of what providers answered about payments: `payouts/answers.jsonl`, mode 0600.

Rules
1. A line per answer: when it came, the payment's key, and the answer. Lines are added, never changed.
2. A line that cannot be read, as one torn by a crash, tells nothing. A lost record costs a question that was answered
   before.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from echo2.coordinator.rails.rail import RailAnswer
from echo2.ledger.payout_facts import SentPayment

ANSWERS: Final = "answers.jsonl"


class RecordedAnswer(msgspec.Struct, frozen=True):
    """A line of the record. `at`: ms. `amount`: minor units; None: none was stated."""

    key: str
    word: str
    amount: int | None = None
    at: int = 0


_answer = msgspec.json.Decoder(RecordedAnswer).decode


def recorded_answers(folder: Path) -> Iterator[RecordedAnswer]:
    """Yield the answers of the record in `folder`, which is `payouts/`, in order (rule 2)."""
    path = folder / ANSWERS
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            yield _answer(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue


class AnswerRecord:
    """The record of a pass over payments. `file`: it is written to. `clock`: ms."""

    def __init__(self, folder: Path, file: BinaryIO, clock: Callable[[], int]) -> None:
        self._folder, self._file, self._clock = folder, file, clock
        self._times: dict[tuple[str, str, int | None], list[int]] | None = None
        """(key, word, amount) -> when it was answered, by earlier passes; None: not read yet."""

    def add(self, key: str, answer: RailAnswer) -> None:
        self._file.write(msgspec.json.encode({"at": self._clock(), "key": key, **answer._asdict()}) + b"\n")

    def repeats(self, payment: SentPayment, answer: RailAnswer) -> bool:
        """Tell whether an earlier pass got the same answer before the payment's last entry, and not before its first,
        as of one that was put back after a restore."""
        if self._times is None:
            self._times = {}
            for one in recorded_answers(self._folder):
                self._times.setdefault((one.key, one.word, one.amount), []).append(one.at)
        times = self._times.get((payment.key, answer.word, answer.amount), [])
        return any(payment.at <= at <= payment.changed for at in times)


@contextmanager
def open_record(folder: Path, clock: Callable[[], int]) -> Iterator[AnswerRecord]:
    """Yield the record in `folder`, which is `payouts/`, to add answers to."""
    with os.fdopen(os.open(folder / ANSWERS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        yield AnswerRecord(folder, file, clock)
