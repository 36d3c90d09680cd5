"""Files of problems: which are read, and the split that a name says."""

import csv
import gzip
import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from echo2.runtime.python_command import code_command
from echo2.tasks.math import data_files
from echo2.tasks.math.data_files import LONGEST_ROW, DataFault, DataFile, FileSplit, files_of, rows_of, split_of

ROWS = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(5)]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def values(path: Path) -> list[Any]:
    return list(each_value(path))


def each_value(path: Path) -> Iterator[Any]:
    for file in files_of(path):
        for _, row in rows_of(file, {"question", "answer"}):
            yield row


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00001.parquet", "train"),
        ("test-00000-of-00001.parquet", "test"),
        ("train_sft-00000-of-00002.parquet", "train"),
        ("validation-00000-of-00001.parquet", "heldout"),
        ("valid.jsonl", "heldout"),
        ("dev.json", "heldout"),
        ("eval.csv.gz", "heldout"),
        ("heldout.jsonl", "heldout"),
        ("held-out.jsonl", "heldout"),
        ("Test.JSONL", "test"),
        ("data/train-00000-of-00001.parquet", "train"),
        ("test/part-0.jsonl", "test"),
        ("main/test-00000-of-00001.parquet", "test"),
        ("training/a.jsonl", "train"),
        ("testimony.jsonl", None),
        ("problems.jsonl", None),
        ("2024.jsonl", None),
    ],
)
def test_the_first_word_of_a_name_or_a_folder_says_the_split(name: str, split: FileSplit | None) -> None:
    assert split_of(PurePath(name)) == split


def test_a_path_that_says_two_splits_is_refused() -> None:
    with pytest.raises(DataFault, match=r"test/train-0\.jsonl says two splits, test and train"):
        split_of(PurePath("test/train-0.jsonl"))


def test_folders_hidden_files_and_descriptions_of_a_data_set_are_walked_or_left_out(tmp_path: Path) -> None:
    jsonl(tmp_path / "data" / "train-00000-of-00001.jsonl", ROWS)
    jsonl(tmp_path / "data" / "test-00000-of-00001.jsonl", ROWS)
    (tmp_path / "README.md").write_text("not read")
    (tmp_path / "dataset_info.json").write_text("{}")
    jsonl(tmp_path / ".cache" / "other.jsonl", ROWS)
    assert [(file.name, file.split) for file in files_of(tmp_path)] == [
        ("data/test-00000-of-00001.jsonl", "test"),
        ("data/train-00000-of-00001.jsonl", "train"),
    ]


@pytest.mark.parametrize("name", ["more.jsonl", "challenge-00000-of-00001.jsonl"])
def test_a_file_that_says_no_split_beside_files_that_do_is_refused(tmp_path: Path, name: str) -> None:
    jsonl(tmp_path / "train.jsonl", ROWS)
    jsonl(tmp_path / name, ROWS)
    with pytest.raises(DataFault, match=rf"{name} of .* does not say its split, as train\.jsonl does"):
        files_of(tmp_path)


def test_a_shard_of_an_unknown_split_is_refused_and_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    shard = jsonl(tmp_path / "challenge-00000-of-00001.jsonl", ROWS)
    with pytest.raises(DataFault, match="does not say its split: let its name begin"):
        files_of(tmp_path)
    assert files_of(shard) == [DataFile(shard, shard.name, None)]


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(row) for row in ROWS).encode()
    forms = {
        "a.jsonl": text,
        "a.jsonl.gz": gzip.compress(text),
        "a.json": json.dumps(ROWS).encode(),
        "b.json": b"\xef\xbb\xbf" + json.dumps(ROWS, indent=2).encode(),
        "c.json": text,
        "a.json.gz": gzip.compress(json.dumps(ROWS).encode()),
        "marked.jsonl": b"\xef\xbb\xbf" + text,
    }
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
        assert values(tmp_path / name) == ROWS, name
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)
    assert values(tmp_path / "a.csv") == ROWS


def test_parquet_has_the_same_rows_and_damaged_files_are_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra math")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{**row, "image": b"not read"} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "sums.parquet")
    assert values(tmp_path / "sums.parquet") == ROWS
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataFault, match=r"bad\.parquet is no Parquet file"):
        values(tmp_path / "bad.parquet")
    content = bytearray((tmp_path / "sums.parquet").read_bytes())
    content[4:60] = bytes(byte ^ 0x5A for byte in content[4:60])
    (tmp_path / "page.parquet").write_bytes(content)
    with pytest.raises(DataFault, match=r"page\.parquet is no Parquet file, or a damaged one .*: write or download it"):
        values(tmp_path / "page.parquet")
    parts = [None, *pyarrow.array([b"\xff\xfe"]).buffers()[1:]]
    no_text = pyarrow.Array.from_buffers(pyarrow.string(), 1, parts)
    beyond = pyarrow.array([2**40], pyarrow.timestamp("s"))
    for name, answer in (("no text", no_text), ("beyond all dates", beyond)):
        table = pyarrow.Table.from_arrays([pyarrow.array(["1 + 1"]), answer], names=["question", "answer"])
        parquet.write_table(table, tmp_path / f"{name}.parquet")
        with pytest.raises(DataFault, match=rf"{name}\.parquet is no Parquet file, or a damaged one"):
            values(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("cut.jsonl", b'{"question": "a", "answer": "1"}\n{"question": ', r"cut\.jsonl row 2 is no JSON"),
        ("cut.json", b'[{"question": "a"', r"cut\.json row 1 is no JSON"),
        ("open.json", b'[{"question": "a"},', r"open\.json row 2 is no JSON"),
        ("ended.json", b'[{"question": "a"}', r"ended\.json row 1 is no JSON: the array has no end"),
        (
            "after.json",
            b'[{"question": "a"}] [{"question": "b"}]',
            r"after\.json row 2 is no JSON: the array has an end",
        ),
        ("two.json", b'[{"question": "a"} {}]', r"two\.json row 1 is no JSON: '\{' stands behind it"),
        ("latin.json", b'[{"question": "\xe9"}]', r"latin\.json row 1 is no JSON"),
        ("cut.jsonl.gz", gzip.compress(b"{}" * 999)[:20], "is no gzip file, or a damaged one"),
        ("plain.jsonl.gz", b"{}", "is no gzip file, or a damaged one"),
        ("latin.csv", b"question,answer\n\xe9,1\n", r"latin\.csv is no CSV file in UTF-8"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFault, match=says):
        values(tmp_path / name)


def test_missing_files_and_other_endings_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataFault, match=r"there is nothing at .*nowhere\.jsonl: correct the path"):
        files_of(tmp_path / "nowhere.jsonl")
    (tmp_path / "rows.xlsx").touch()
    with pytest.raises(DataFault, match="is no folder, and no file that ends with"):
        files_of(tmp_path / "rows.xlsx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFault, match="has no file that ends with"):
        files_of(tmp_path / "empty")


def test_a_file_that_is_one_endless_row_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    with (tmp_path / "huge.jsonl").open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(DataFault, match=rf"huge\.jsonl row 1 has more than {LONGEST_ROW} bytes"):
        values(tmp_path / "huge.jsonl")


def test_an_array_that_takes_many_times_its_file_is_read_element_by_element(tmp_path: Path) -> None:
    rows = [{"question": "x" * 90_000, "answer": number} for number in range(40)] + [[], 7, "a, ]"]
    (tmp_path / "wide.json.gz").write_bytes(gzip.compress(json.dumps(rows, indent=1).encode(), 1))
    tracemalloc.start()
    try:
        lengths = [len(json.dumps(value)) for value in each_value(tmp_path / "wide.json.gz")]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lengths == [len(json.dumps(row)) for row in rows]
    assert peak < 2_000_000
    with gzip.open(tmp_path / "row.json.gz", "wb", 1) as file:
        file.write(b'["' + b"x" * 2 * LONGEST_ROW)
    with pytest.raises(DataFault, match=rf"row 1 is no JSON: .*, or it has more than {LONGEST_ROW} characters"):
        values(tmp_path / "row.json.gz")
    (tmp_path / "none.json").write_bytes(b" [ ] ")
    assert values(tmp_path / "none.json") == []


def test_a_parquet_value_that_stands_for_many_rows_is_not_made_for_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra math")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(data_files, "MOST_BATCH_BYTES", 8 << 20)
    bomb = pyarrow.DictionaryArray.from_arrays([0] * 10_000, ["x" * (1 << 20)])
    parquet.write_table(pyarrow.table({"question": bomb}), tmp_path / "bomb.parquet", compression="zstd")
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    rows = rows_of(DataFile(tmp_path / "bomb.parquet", "bomb.parquet", None), ("question",))
    assert [number for number, _ in itertools.islice(rows, 9)] == list(range(1, 10))
    assert pyarrow.total_allocated_bytes() < 32 << 20
    monkeypatch.setattr(data_files, "MOST_GROUP_BYTES", 1 << 20)
    with pytest.raises(DataFault, match=r"bomb\.parquet has a row group of more than 1048576 bytes"):
        values(tmp_path / "bomb.parquet")


def of_equal_values(path: Path, pyarrow: Any) -> None:
    """Write 65,536 rows of one text of 32 kB."""
    texts = pyarrow.DictionaryArray.from_arrays([0] * (1 << 16), ["x" * 32_000])
    write_understated(path, pyarrow.table({"question": texts}))


def of_one_long_list(path: Path, pyarrow: Any) -> None:
    """Write a row that is a list of 65,536 texts of 2 kB."""
    texts = pyarrow.DictionaryArray.from_arrays([0] * (1 << 16), ["x" * 2_000])
    offsets = pyarrow.array([0, 1 << 16], pyarrow.int32())
    write_understated(path, pyarrow.table({"question": pyarrow.ListArray.from_arrays(offsets, texts)}))


def of_a_growing_text(path: Path, pyarrow: Any) -> None:
    """Write 2,400 rows of 32 kB, each as a difference to the one before."""
    table = pyarrow.table({"question": pyarrow.array(["x" * 32_000] * 2_400)})
    write_understated(path, table, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")


def write_understated(path: Path, table: Any, **options: Any) -> None:
    """Write a file whose head says that each column of a row group takes 1 byte."""
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table, path, compression="zstd", write_statistics=False, **options)
    data, head = bytearray(path.read_bytes()), int.from_bytes(path.read_bytes()[-8:-4], "little") + 8
    group = parquet.read_metadata(path).row_group(0)
    size = varint(group.column(0).total_uncompressed_size)
    one = bytes([2 | 0x80] + [0x80] * (len(size) - 2) + [0])
    data[-head:] = data[-head:].replace(b"\x16" + size, b"\x16" + one)
    path.write_bytes(data)
    assert parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1


def varint(number: int) -> bytes:
    """Return a number as Thrift's compact protocol has it."""
    number, out = 2 * number, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds the address space")
@pytest.mark.parametrize("write", [of_equal_values, of_one_long_list, of_a_growing_text])
def test_a_parquet_file_that_understates_what_it_holds_is_refused_before_it_takes_that(
    tmp_path: Path, write: Callable[[Path, Any], None]
) -> None:
    """In a process of its own: what it took at most shows there, and this one's threads are left alone. An honest file
    is read there first, under the same bound."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra math")
    write(tmp_path / "bomb.parquet", pyarrow)
    assert (tmp_path / "bomb.parquet").stat().st_size < 200_000
    honest = [{"question": f"{number} " * 500} for number in range(5_000)]
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(honest), tmp_path / "honest.parquet")
    code = (
        "import pathlib, resource, sys\n"
        "from echo2.tasks.math import data_files\n"
        "data_files.MOST_MEMORY = 1 << 26\n"
        "def count(path):\n"
        "    return sum(1 for _ in data_files.rows_of(data_files.DataFile(path, path.name, None), ('question',)))\n"
        "honest, bomb = map(pathlib.Path, sys.argv[1:])\n"
        "print(count(honest))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    count(bomb)\n"
        "except data_files.DataFault as fault:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, fault)\n"
    )
    files = (str(tmp_path / name) for name in ("honest.parquet", "bomb.parquet"))
    done = subprocess.run(code_command(code, *files), capture_output=True, text=True, check=False, timeout=60)
    read, told = done.stdout.splitlines()
    assert read == "5000"
    kibibytes, _, sentence = told.partition(" ")
    assert sentence.startswith("bomb.parquet needs more than 67108864 bytes of memory for some rows behind row 0"), done
    assert int(kibibytes) < 80 << 10


def test_a_line_of_csv_without_an_end_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "wide.csv.gz", "wb", 1) as file:
        file.write(b"question,answer\n" + b"x," * LONGEST_ROW)
    with pytest.raises(DataFault, match=rf"wide\.csv\.gz line 2: its row has more than {LONGEST_ROW} characters"):
        values(tmp_path / "wide.csv.gz")
    with gzip.open(tmp_path / "wide.csv.gz", "wb", 1) as file:
        file.write(b"question,answer\n" + (b'"' + b"x" * 99_998 + b'\n",') * (LONGEST_ROW // 50_000))
    with pytest.raises(DataFault, match=r"wide\.csv\.gz line 6\d: its row has more"):
        values(tmp_path / "wide.csv.gz")


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    jsonl(tmp_path / "rows.jsonl", ROWS)
    os.mkfifo(tmp_path / "other.jsonl")
    with pytest.raises(DataFault, match=r"other\.jsonl is no file"):
        values(tmp_path)
