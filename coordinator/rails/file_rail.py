"""Payments in files that a person hands to a bank or a payout service, and the outcomes that the person brings back.

Rules
1. `rows-N.jsonl` is the journal of batch N: its time, then one line per payment, each durable before `send` returns. A
   line that was torn by a crash is removed at the next start: its payment was never acknowledged.
2. A batch is closed once, when the rail is closed or, after a crash, at the next start: its file is then written whole,
   and nothing is added to the batch. So a file that a person has handed on never gains a payment.
3. A key is in one batch only. Sending it again, with the same account and amount, changes nothing.
4. The outcomes are in `results.csv`, written by a person: `key,outcome,amount,reference`, where the outcome is
   `confirmed` or `returned`, and the amount has two decimals. Until a payment is named there, it is `taken`. A payment
   that is named there counts also where its journal was lost.
5. All files have mode 0600, as they name accounts.
"""

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from echo2.coordinator.rails import minor_units
from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import room, sync_folder, writing
from echo2.runtime.printable import printable

RESULTS: Final = "results.csv"
COLUMNS: Final = ["key", "outcome", "amount", "reference"]
MOST_RESULTS: Final = 64 << 20
"""Bytes of `results.csv`."""


class FileRow(msgspec.Struct, frozen=True):
    """A payment of a batch. `amount`: minor units."""

    key: str
    account: str
    amount: int


class PaymentBatch(NamedTuple):
    """The payments of one file. `at`: when it was begun, ms."""

    number: int
    at: int
    rows: Sequence[FileRow]


class FileFormat(NamedTuple):
    """A kind of file. `suffix`: suffix of its name. `render`: a batch -> the file's bytes. `check`: raises
    `BadAccount`."""

    suffix: str
    render: Callable[[PaymentBatch], bytes]
    check: Callable[[str], None]


class _Begun(msgspec.Struct, frozen=True):
    at: int


_row = msgspec.json.Decoder(FileRow).decode
_begun = msgspec.json.Decoder(_Begun).decode


class FileRail:
    """A rail that writes files of one format into a folder. `clock`: ms."""

    def __init__(self, folder: Path, file_format: FileFormat, clock: Callable[[], int]) -> None:
        """Open the folder, and close the batch of an earlier process. Raises `LocalFault`."""
        self._folder, self._format, self._clock = folder, file_format, clock
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._rows: dict[str, FileRow] = {}
        self._batch = 0
        self._journal: BinaryIO | None = None
        for path in sorted(folder.glob("rows-*.jsonl"), key=_number):
            self._batch = _number(path)
            for row in self._close(path).rows:
                self._rows[row.key] = row
        self._results = read_results(folder / RESULTS)

    async def quote(self, account: str, amount: int) -> Quote:
        """Return no fee: this rail knows of none. Raises `BadAccount`."""
        self._format.check(account)
        return Quote(0)

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        """Write a payment into the journal of the open batch. Raises `BadAccount`, `LocalFault`, `DiskFull`."""
        self._format.check(account)
        row = FileRow(idempotency_key, account, amount)
        known = self._rows.get(idempotency_key)
        if known is not None and known != row:
            raise LocalFault(f"payment {idempotency_key} is in a file already, with another account or amount")
        if known is None:
            self._write(row)
        return self._status(idempotency_key)

    async def status(self, idempotency_key: str) -> RailAnswer:
        """Return the outcome that a person brought back (rule 4)."""
        return self._status(idempotency_key)

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        """Return the status: only the bank can stop a payment that is in a file."""
        return self._status(idempotency_key)

    def close(self) -> None:
        """Close the open batch (rule 2)."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            self._close(self._path)

    def _status(self, key: str) -> RailAnswer:
        return self._results.get(key) or RailAnswer("taken" if key in self._rows else "absent")

    @property
    def _path(self) -> Path:
        return self._folder / f"rows-{self._batch}.jsonl"

    def _write(self, row: FileRow) -> None:
        if self._journal is None:
            self._batch += 1
            self._journal = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            self._append(_Begun(self._clock()))
            sync_folder(self._folder)
        self._append(row)
        self._rows[row.key] = row

    def _append(self, entry: msgspec.Struct) -> None:
        assert self._journal is not None
        with room(self._path):
            self._journal.write(msgspec.json.encode(entry) + b"\n")
            self._journal.flush()
            os.fsync(self._journal.fileno())

    def _close(self, path: Path) -> PaymentBatch:
        """Write the file of a batch unless it is there, and return the batch. Raises `LocalFault`."""
        batch = read_batch(path)
        target = path.with_name(f"payments-{batch.number}.{self._format.suffix}")
        if batch.rows and not target.exists():
            with writing(target, 0o600) as file:
                file.write(self._format.render(batch))
        return batch


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("rows-")
    if not digits.isdecimal():
        raise LocalFault(f"{path} is no journal of payments: move it away")
    return int(digits)


def read_batch(path: Path) -> PaymentBatch:
    """Return the batch of a journal; a torn last line is removed from the file (rule 1). Raises `LocalFault`."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        with path.open("r+b") as file:
            file.truncate(len(whole))
            os.fsync(file.fileno())
    return _batch(path, whole)


def rows(folder: Path) -> list[FileRow]:
    """Return the payments in the journals of a rail's folder, and change nothing. Raises `LocalFault`."""
    payments = list[FileRow]()
    for path in folder.glob("rows-*.jsonl"):
        data = path.read_bytes()
        payments += _batch(path, data[: data.rfind(b"\n") + 1]).rows
    return payments


def check_files(folder: Path) -> None:
    """Check the journals and the outcomes in a rail's folder, and change nothing. Raises `LocalFault`, naming file and
    line."""
    rows(folder)
    read_results(folder / RESULTS)


def _batch(path: Path, whole: bytes) -> PaymentBatch:
    first, *lines = whole.splitlines() or [b'{"at":0}']
    try:
        return PaymentBatch(_number(path), _begun(first).at, [_row(text) for text in lines])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LocalFault(f"the journal of payments {path} is damaged: {error}") from error


def read_results(path: Path) -> dict[str, RailAnswer]:
    """Return the outcomes by key (rule 4); none if there is no file. Raises `LocalFault`, naming the line."""
    if not path.exists():
        return {}
    if path.stat().st_size > MOST_RESULTS:
        raise LocalFault(f"{path} has more than {MOST_RESULTS} bytes: is it the file of outcomes?")
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise LocalFault(f"{path} is no CSV file in UTF-8: {error}") from error
    if not rows or rows[0] != COLUMNS:
        raise LocalFault(f"the first line of {path} should be {','.join(COLUMNS)}")
    results: dict[str, RailAnswer] = {}
    for number, row in enumerate(rows[1:], start=2):
        try:
            key, answer = _result(row)
        except LocalFault as error:
            raise LocalFault(f"{path}, line {number}: {error}") from error
        if results.setdefault(key, answer) != answer:
            raise LocalFault(f"{path}, line {number}: another line states another outcome of {key}")
    return results


def _result(row: Sequence[str]) -> tuple[str, RailAnswer]:
    if len(row) != len(COLUMNS) or row[1] not in ("confirmed", "returned"):
        raise LocalFault(f"needs {len(COLUMNS)} cells, the second `confirmed` or `returned`")
    key, outcome, amount, reference = row
    return key, RailAnswer(
        "done" if outcome == "confirmed" else "returned",
        minor_units.parse_amount(amount),
        reference=printable(reference[:100]),
    )
