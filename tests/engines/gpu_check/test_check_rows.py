"""The rows of a device's check: goals by its own peaks, remedies, and what was not measured."""

import pytest

from echo2.engines.gpu_check.check_rows import UNSEEN, CheckRow, Measurement, measured_rows, text_of, without_places

CARD = {
    "free": 23e9, "total": 24e9, "bandwidth": 900e9, "upload": 12e9, "product_bfloat16": 130e12, "product_tf32": 60e12,
    "product_float32": 60e12, "choice_bytes": 238 * 64 * 151_936, "choice": 3e-3, "decode_bytes": 3.5e9,
    "decode": 11e-3, "waits": 0.0, "scorer_flops": 1.2e9, "scorer": 25_000.0,
    "scorer_tf32": 25_000.0,
}  # fmt: skip
"""What a good RTX 4090 measures, by the model's shape of this check."""


def rows_of(name: str = "NVIDIA GeForce RTX 4090", kind: str = "cuda:0", **changes: float) -> dict[str, CheckRow]:
    words = {"device": kind, "name": name, "torch": "2.13.0, CUDA 12.8"}
    measurements = [Measurement(name=one, words=text) for one, text in words.items()]
    measurements += [Measurement(name=one, value=value, words="64 rows") for one, value in {**CARD, **changes}.items()]
    whole = ("product", "checking pass")
    return {row.what if row.what.startswith(whole) else row.what.partition(",")[0]: row
            for row in measured_rows(measurements, "pip install vllm")}  # fmt: skip


def test_a_good_card_meets_every_goal() -> None:
    rows = rows_of()
    assert {row.verdict for row in rows.values()} == {"", "ok"}
    assert [row.remedy for row in rows.values() if row.remedy] == []
    assert rows["product of matrices, bfloat16"].value == "130 TFLOP/s, 79 % of the card's"
    assert rows["memory bandwidth"].goal == "at least 756 GB/s"


SHORT: dict[str, tuple[str, dict[str, float], str]] = {
    "a card that others use": ("free memory", {"free": 12e9}, "other programs hold 11.2 GiB: close them"),
    "a card that is capped": ("product of matrices, float32", {"product_float32": 20e12}, "nvidia-smi shows each"),
    "slow memory": ("memory bandwidth", {"bandwidth": 500e9}, "nvidia-smi shows each"),
    "a slot of one lane": ("copies from the host", {"upload": 0.8e9}, "few lanes"),
    "a slow host": ("decode step", {"decode": 45e-3}, "install vLLM, pip install vllm, and join with --engine vllm"),
    "a choice by small kernels": ("choice of tokens", {"choice": 9e-3}, "--rows"),
    "a step that waits": ("waits for the card per step", {"waits": 1.0}, "attach this table to a report"),
    "a slow checking pass": ("checking pass, float32", {"scorer": 5_000.0}, "attach this table"),
    "a checking pass without tensor cores": ("checking pass, tf32", {"scorer_tf32": 9_000.0}, "attach this table"),
}


@pytest.mark.parametrize("fault", SHORT)
def test_a_figure_that_misses_its_goal_names_what_helps(fault: str) -> None:
    what, changes, remedy = SHORT[fault]
    row = rows_of(**changes)[what]
    assert row.verdict == "short"
    assert remedy in row.remedy


def test_a_card_without_known_peaks_and_a_cpu_have_no_goals_of_the_data_sheet() -> None:
    unknown = rows_of(name="A new card")
    assert unknown["product of matrices, bfloat16"].goal == unknown["memory bandwidth"].goal == ""
    assert unknown["decode step"].goal == "at most 11.7 ms", "by its own memory"
    cpu = rows_of(name="a CPU", kind="cpu", decode=9.0, free=1e9)
    assert {row.goal for row in cpu.values()} == {"", "0"}


def test_what_was_not_measured_says_why_and_spoils_no_other_row() -> None:
    full = Measurement(name="decode", fault="RuntimeError: out of memory")
    rows = measured_rows([Measurement(name="device", words="cuda:0"), full], "")
    by_name = {row.what: row for row in rows}
    assert {row.verdict for row in rows} == {UNSEEN}
    assert by_name["decode step"].remedy == "RuntimeError: out of memory"
    assert by_name["memory bandwidth"].remedy == "the time was used up before it"
    assert len(text_of(rows)) == 2 * len(rows) + 2


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("cannot open /home/ann/.local/lib/libcuda.so.1: denied", "cannot open (path): denied"),
        ("File '~/x/y', at C:\\Users\\ann\\x", "File '(path)', at (path)"),
        ("annes-box has it, box too", "(host) has it, box too"),
        ("transformers/float16/cuda at 12 GB/s and/or 3", "transformers/float16/cuda at 12 GB/s and/or 3"),
    ],
)
def test_a_table_for_others_has_no_path_and_no_name_of_the_host(text: str, clean: str) -> None:
    (row,) = without_places([CheckRow(what="x", value=text, remedy=text)], "annes-box")
    assert (row.value, row.remedy) == (clean, clean)
