"""Test the candidates of engine, number format and device, the order of their timing, and the best of them."""

import pytest

from echo2.engines.devices.devices import Gpu, Inventory
from echo2.engines.engine import DTYPES, Dtype
from echo2.engines.process.candidates import (
    Candidate,
    Sight,
    Trial,
    best,
    candidates,
    equal_cards,
    favourites,
    fleet_lines,
    lines,
    winner_over,
)
from echo2.engines.rate import Rate

GIB = 2**30
CARD = Gpu(name="a card", free=20 * GIB, total=24 * GIB)
BUSY = Gpu(name="a card", free=2 * GIB, total=24 * GIB)
OTHER = Gpu(name="another card", free=8 * GIB, total=8 * GIB)
BROKEN = Gpu(name="an old card", fault="no kernel image is available")
EMULATED = Gpu(name="llvmpipe", emulated=True)


def sight(engine: str, gpus: dict[str, list[Gpu]], dtypes: tuple[Dtype, ...] = ("float32", "float16")) -> Sight:
    devices = ("cuda", "cpu") if engine == "transformers" else ("vulkan", "cpu")
    return Sight(engine=engine, devices=devices, dtypes=dtypes, inventory=Inventory(cpu="a CPU", gpus=gpus))


def everything(engine_class: str) -> str:
    return ""


def names(sights: list[Sight]) -> list[str]:
    return [f"{one.engine}/{one.dtype}/{one.device}" for one in candidates(sights, everything)[0]]


def test_gpus_come_before_the_cpu_and_16_bits_before_32_on_them() -> None:
    seen = [sight("transformers", {"cuda": [CARD]}), sight("llamacpp", {"vulkan": [CARD]})]
    assert names(seen) == [
        "transformers/float16/cuda:0", "transformers/float32/cuda:0",
        "llamacpp/float16/vulkan:0", "llamacpp/float32/vulkan:0",
        "transformers/float32/cpu", "llamacpp/float32/cpu", "transformers/float16/cpu", "llamacpp/float16/cpu",
    ]  # fmt: skip


def test_every_number_format_has_its_place_in_the_order() -> None:
    for device in ("vulkan:0", "cpu"):
        ready = names([sight("llamacpp", {"vulkan": [CARD]}, DTYPES)])
        assert {one for one in ready if one.endswith(device)} == {f"llamacpp/{dtype}/{device}" for dtype in DTYPES}
    assert ready[:4] == [f"llamacpp/{dtype}/vulkan:0" for dtype in ("blocks", "float16", "bfloat16", "float32")]


INVENTORIES: dict[str, tuple[list[Gpu], list[str]]] = {
    "no GPU": ([], []),
    "of two equal cards, the free one": ([BUSY, CARD], ["vulkan:1"]),
    "two different cards": ([CARD, OTHER], ["vulkan:0", "vulkan:1"]),
    "a broken card": ([BROKEN, OTHER], ["vulkan:1"]),
    "an emulated card": ([EMULATED], []),
}


@pytest.mark.parametrize(("gpus", "devices"), INVENTORIES.values(), ids=INVENTORIES.keys())
def test_the_devices_that_are_timed(gpus: list[Gpu], devices: list[str]) -> None:
    ready, _ = candidates([sight("llamacpp", {"vulkan": gpus}, ("float32",))], everything)
    assert [one.device for one in ready] == [*devices, "cpu"]


def test_a_kind_of_device_that_the_engine_does_not_compute_on_is_none() -> None:
    assert names([sight("transformers", {"vulkan": [CARD]}, ("float32",))]) == ["transformers/float32/cpu"]


def test_classes_that_the_run_does_not_take_lose_with_the_reason_and_broken_cards_with_theirs() -> None:
    def admits(engine_class: str) -> str:
        return "no calibration" if "float16" in engine_class else ""

    ready, lost = candidates([sight("llamacpp", {"vulkan": [CARD, BROKEN]})], admits)
    assert [(one.device, one.dtype) for one in ready] == [("vulkan:0", "float32"), ("cpu", "float32")]
    assert [(one.candidate.device, one.fault) for one in lost] == [
        ("vulkan:1", "no kernel image is available"), ("vulkan:0", "no calibration"), ("cpu", "no calibration"),
    ]  # fmt: skip


def trial(engine: str, device: str, tokens: int = 0, *, seconds: float = 5.0, cpu: float = 5.0, why: str = "") -> Trial:
    candidate = Candidate(engine=engine, dtype="float32", device=device, hardware="it")
    rate = Rate(tokens=tokens, seconds=seconds, cpu_seconds=cpu, rows=8) if tokens else None
    return Trial(candidate=candidate, rate=rate, fault=why)


DEAD = trial("vllm", "cuda:0", why="engine ended with -9: no output")
BEST: dict[str, tuple[list[Trial], str | None]] = {
    "nobody": ([DEAD], None),
    "by the clock": ([trial("a", "cuda:0", 100), trial("b", "vulkan:0", 120, cpu=50.0), DEAD], "b"),
    "on one CPU, by its own seconds": ([trial("a", "cpu", 100, cpu=2.0), trial("b", "cpu", 120, cpu=5.0)], "a"),
    "a GPU and two on the CPU": (
        [trial("a", "cpu", 100, cpu=2.0), trial("b", "cpu", 130, cpu=5.0), trial("c", "cuda:0", 110)], "c",
    ),
    "a CPU that is faster than the GPU": ([trial("a", "cpu", 100), trial("c", "vulkan:0", 10)], "a"),
}  # fmt: skip


@pytest.mark.parametrize(("trials", "engine"), BEST.values(), ids=BEST.keys())
def test_the_best(trials: list[Trial], engine: str | None) -> None:
    chosen = best(trials)
    assert (chosen.candidate.engine if chosen is not None else None) == engine


CARDS: dict[str, tuple[dict[Dtype, int], Dtype]] = {
    "a card with bfloat16": ({"float16": 900, "bfloat16": 900, "float32": 200}, "float16"),
    "a card that emulates bfloat16": ({"float16": 900, "bfloat16": 150, "float32": 200}, "float16"),
    "a card on which bfloat16 fails": ({"float16": 900, "float32": 200}, "float16"),
    "a card with bfloat16, a model that leaves the range of float16": ({"bfloat16": 900, "float32": 200}, "bfloat16"),
    "a card without bfloat16, a model that leaves the range of float16": ({"float32": 200}, "float32"),
}


@pytest.mark.parametrize(("rates", "chosen"), CARDS.values(), ids=CARDS.keys())
def test_the_number_format_that_a_card_gets(rates: dict[Dtype, int], chosen: Dtype) -> None:
    """`rates`: tokens per number format; one without a rate ended with an error."""
    ready, _ = candidates([sight("transformers", {"cuda": [CARD]}, ("float32", "float16", "bfloat16"))], everything)
    done = [
        Trial(candidate=one, rate=Rate(tokens=rates[one.dtype], seconds=5.0, cpu_seconds=1.0, rows=8))
        if one.dtype in rates
        else Trial(candidate=one, fault="it ended")
        for one in ready
        if one.kind == "cuda"
    ]
    fastest = best(done)
    assert fastest.candidate.dtype == chosen


def test_each_candidate_is_told_with_its_rate_and_why_it_lost() -> None:
    slow, fast = trial("a", "vulkan:0", 100), trial("b", "cuda:1", 400)
    assert lines([slow, DEAD, fast]) == [
        "b/float32/cuda:1 (it): 80 tokens/s with 8 rows: chosen",
        "a/float32/vulkan:0 (it): 20 tokens/s with 8 rows: 0.25 of the chosen rate",
        "vllm/float32/cuda:0 (it): engine ended with -9: no output",
    ]
    near, far = trial("a", "cpu", 100, cpu=2.5), trial("b", "cpu", 100)
    assert lines([far, near]) == [
        "a/float32/cpu (it): 20 tokens/s with 8 rows, 40 per CPU second: chosen",
        "b/float32/cpu (it): 20 tokens/s with 8 rows, 20 per CPU second: 0.5 of the chosen rate",
    ]


def test_devices_that_are_all_used_are_told_without_a_choice() -> None:
    assert fleet_lines([trial("a", "cuda:0", 400), trial("a", "cpu", 100), DEAD]) == [
        "a/float32/cuda:0 (it): 80 tokens/s with 8 rows",
        "a/float32/cpu (it): 20 tokens/s with 8 rows, 20 per CPU second",
        "vllm/float32/cuda:0 (it): engine ended with -9: no output",
    ]


def of(engine: str, device: str, dtype: Dtype = "float16") -> Candidate:
    return Candidate(engine=engine, dtype=dtype, device=device, hardware="it")


VLLM, SLOW, LLAMA = of("vllm", "cuda:0"), of("transformers", "cuda:0"), of("llamacpp", "vulkan:0")
METAL, MPS, XPU = of("llamacpp", "metal"), of("transformers", "mps"), of("transformers", "xpu:0")
PREFERRED: dict[str, tuple[list[Candidate], list[Candidate]]] = {
    "an NVIDIA card with vLLM": ([VLLM, SLOW, LLAMA, of("llamacpp", "cpu")], [VLLM]),
    "an NVIDIA card without vLLM": ([SLOW, LLAMA], []),
    "an AMD card": ([LLAMA, of("transformers", "cpu")], [LLAMA]),
    "an Apple processor": ([MPS, METAL], [METAL]),
    "an Intel card": ([XPU, LLAMA], [LLAMA]),
    "a CPU with vLLM": ([of("vllm", "cpu"), of("llamacpp", "cpu")], []),
}


@pytest.mark.parametrize(("ready", "first"), PREFERRED.values(), ids=PREFERRED.keys())
def test_the_engine_made_for_a_card_is_taken_without_a_race(ready: list[Candidate], first: list[Candidate]) -> None:
    assert favourites(ready) == first


def test_vllm_is_started_once_a_card_and_llama_cpp_in_each_format() -> None:
    works = Rate(tokens=9, seconds=1.0, cpu_seconds=1.0, rows=1)
    other, second = of("vllm", "cuda:0", "bfloat16"), of("vllm", "cuda:1")
    done = [Trial(candidate=VLLM, rate=works)]
    assert winner_over(done, [VLLM, other, second], other) == VLLM
    assert winner_over(done, [VLLM, other, second], SLOW) == VLLM
    assert winner_over(done, [VLLM, other, second], second) is None
    assert winner_over([Trial(candidate=VLLM, fault="it ended")], [VLLM], SLOW) is None
    blocks = of("llamacpp", "vulkan:0", "blocks")
    done = [Trial(candidate=LLAMA, rate=works)]
    assert winner_over(done, [LLAMA, blocks], blocks) is None
    assert winner_over(done, [LLAMA, blocks], XPU) == LLAMA


def test_all_cards_of_the_chosen_ones_name_compute_alike() -> None:
    seen = [sight("transformers", {"cuda": [CARD, BUSY, OTHER, BROKEN]})]
    chosen = Candidate(engine="transformers", dtype="float16", device="cuda:1", hardware="a card")
    assert [one.device for one in equal_cards(chosen, seen)] == ["cuda:0", "cuda:1"]
    assert {(one.engine, one.dtype, one.hardware) for one in equal_cards(chosen, seen)} == {
        ("transformers", "float16", "a card")
    }
    alone = Candidate(engine="transformers", dtype="float16", device="cuda:2", hardware="another card")
    assert equal_cards(alone, seen) == [alone]
    cpu = Candidate(engine="transformers", dtype="float32", device="cpu", hardware="a CPU")
    assert equal_cards(cpu, seen) == [cpu]
    assert equal_cards(chosen, []) == [chosen]
