"""The measuring process: `python -m echo2.engines.gpu_check.measuring DEVICE [--quick]`, one JSON line per figure.

Rules
1. A measurement that fails says why in its line, and the next one begins: a card out of memory still has a bandwidth.
2. On a GPU the model has the shape of Qwen3-0.6B, else that of a toy; values are random. Nothing is downloaded.
3. A device that cannot be chosen is the only line, `no-device`: the reason is a sentence for the user.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Final

import msgspec

from echo2.engines.devices.devices import NoDevice, choose
from echo2.engines.gpu_check.check_rows import Measurement
from echo2.engines.registry import TRANSFORMERS

Yielded = Iterator[Measurement]
GPU_SHAPE: Final = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
CPU_SHAPE: Final = {
    "vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
CHOICE_BYTES: Final = 238
"""Bytes of memory that the choice of a token touches for each word of the vocabulary."""
NO_TF32: Final = "only NVIDIA's cards from Ampere on compute in TF32"
CONTEXT: Final = 256
"""Tokens of the prompt before the decode steps."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the measurements. `copied`: bytes of a copy. `width`: rows of the matrices. `rows`: rollouts of a decode
    step. `seconds`: least time of each measurement."""

    shape: dict[str, int]
    copied: int
    width: int
    rows: int
    seconds: float


def sizes_for(kind: str, *, quick: bool) -> Sizes:
    if kind == "cpu":
        width, copied = (256, 16 << 20) if quick else (1024, 128 << 20)
        return Sizes(shape=CPU_SHAPE, copied=copied, width=width, rows=16, seconds=0.02 if quick else 1.0)
    shape = GPU_SHAPE | ({"num_hidden_layers": 4} if quick else {})
    return Sizes(shape=shape, copied=1 << 30, width=8192, rows=64, seconds=0.3 if quick else 1.0)


class Measuring:
    """The measurements on one device of PyTorch."""

    def __init__(self, device: str, sizes: Sizes) -> None:
        import torch

        self._torch, self._sizes = torch, sizes
        self._device = torch.device(device)

    def run(self) -> Yielded:
        """Yield everything that is measured (rule 1)."""
        parts: dict[str, Callable[[], Yielded]] = {
            "torch": self._build, "free": self._memory, "bandwidth": self._bandwidth, "upload": self._upload,
            "product_bfloat16": lambda: self._product("bfloat16"), "product_tf32": lambda: self._product("tf32"),
            "product_float32": lambda: self._product("float32"), "choice": self._choice, "decode": self._decode,
            "scorer": lambda: self._scorer(tf32=False), "scorer_tf32": lambda: self._scorer(tf32=True),
        }  # fmt: skip
        for name, part in parts.items():
            try:
                yield from part()
            except Exception as error:  # whatever it is, the table says so
                yield Measurement(name=name, fault=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300])

    def _build(self) -> Yielded:
        torch = self._torch
        for name, version in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip), ("XPU", torch.version.xpu)):
            if version:
                yield Measurement(name="torch", words=f"{torch.__version__}, {name} {version}")
                return
        yield Measurement(name="torch", words=str(torch.__version__))

    def _memory(self) -> Yielded:
        from echo2.engines.transformers.device_memory import free_memory

        if self._device.type in ("cuda", "xpu"):
            _, total = self._torch.get_device_module(self._device).mem_get_info(self._device)
            yield Measurement(name="total", value=float(total))
        yield Measurement(name="free", value=float(free_memory(self._device)))

    def _bandwidth(self) -> Yielded:
        one = self._torch.empty(self._sizes.copied, dtype=self._torch.uint8, device=self._device)
        other = self._torch.empty_like(one)
        seconds = self._median_seconds(lambda: other.copy_(one))
        yield Measurement(name="bandwidth", value=2 * self._sizes.copied / seconds)

    def _upload(self) -> Yielded:
        if self._device.type == "cpu":
            yield Measurement(name="upload", fault="a CPU computes in the host's own memory")
            return
        on_host = self._torch.empty(self._sizes.copied, dtype=self._torch.uint8)
        if self._device.type == "cuda":
            on_host = on_host.pin_memory()
        there = self._torch.empty(self._sizes.copied, dtype=self._torch.uint8, device=self._device)
        seconds = self._median_seconds(lambda: there.copy_(on_host))
        yield Measurement(name="upload", value=self._sizes.copied / seconds)

    def _product(self, name: str) -> Yielded:
        torch, width = self._torch, self._sizes.width
        tf32 = self._tf32()
        if name == "tf32" and tf32 is None:
            yield Measurement(name="product_tf32", fault=NO_TF32)
            return
        matrix = torch.randn(width, width, device=self._device)
        if name == "bfloat16":
            matrix = matrix.bfloat16()
        with tf32() if name == "tf32" and tf32 else nullcontext():
            seconds = self._median_seconds(lambda: matrix @ matrix)
        yield Measurement(name=f"product_{name}", value=2 * width**3 / seconds)

    def _choice(self) -> Yielded:
        from echo2.engines.sampling import sampling

        rows, vocabulary = self._sizes.rows, self._sizes.shape["vocab_size"]
        logits = self._torch.randn(rows, vocabulary, device=self._device) * 3
        keys = sampling.keys([(bytes(16), number) for number in range(rows)], self._device)
        seconds = self._median_seconds(lambda: sampling.choose(logits, keys))
        yield Measurement(name="choice_bytes", value=float(CHOICE_BYTES * rows * vocabulary))
        yield Measurement(name="choice", value=seconds, words=f"{rows} rows of {vocabulary:,} words")

    def _decode(self) -> Yielded:
        from echo2.engines.batch.continuous_batch import FirstToken, NextToken
        from echo2.engines.transformers.decoder import Decoder
        from echo2.engines.transformers.step_graphs import recorder_of

        rows = self._sizes.rows
        model = self._model(self._torch.bfloat16 if self._device.type != "cpu" else self._torch.float32)
        decoder = Decoder(model, self._device, recorder=recorder_of(self._device, os.environ))
        prompt = decoder.prefill([[7] * CONTEXT])[0]
        decoder.decode([], [FirstToken(prompt, bytes(16), False)] * rows)()
        position, reads = CONTEXT, list[Callable[[], Any]]()

        def step() -> None:
            nonlocal position
            reads.append(decoder.decode([NextToken(None, position, bytes(16), position, False)] * rows, []))
            position += 1
            if len(reads) > 1:
                reads.pop(0)()  # a step behind, as the engine does

        seconds = self._median_seconds(step)
        nbytes = sum(one.nbytes for one in model.parameters())
        words = f"{rows} rows, {nbytes / 1e6:,.0f} MB of weights, {rows / seconds:,.0f} tokens/s"
        yield Measurement(name="decode_bytes", value=float(nbytes + CHOICE_BYTES * rows * model.config.vocab_size))
        yield Measurement(name="decode", value=seconds, words=words)
        yield self._waits(step)

    def _waits(self, step: Callable[[], None]) -> Measurement:
        """Count the calls of CUDA in which a step waits for the device, without the one that reads its tokens."""
        if self._device.type != "cuda":
            return Measurement(name="waits", fault="only CUDA says so")
        from torch.profiler import ProfilerActivity, profile

        steps = 3
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(steps):
                step()
        events = [str(one.name) for one in seen.events()]
        waits = sum(name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy") for name in events)
        return Measurement(name="waits", value=waits / steps)

    def _tf32(self) -> Any:
        from echo2.engines.transformers.tf32 import tf32_of

        return tf32_of(self._device, {})

    def _scorer(self, *, tf32: bool) -> Yielded:
        from echo2.engines.engine import GroupToScore, Job, Sample
        from echo2.engines.transformers.scoring import GroupScorer

        if tf32 and self._tf32() is None:
            yield Measurement(name="scorer_tf32", fault=NO_TF32)
            return
        length, vocabulary = 16 if self._device.type == "cpu" else 512, self._sizes.shape["vocab_size"]
        model = self._model(self._torch.float32)
        samples = [
            Sample(tokens=[1 + (n * 31 + row) % (vocabulary - 1) for n in range(length)], turns=[length],
                   logprobs=[0.0] * length)
            for row in range(8)
        ]  # fmt: skip
        job = Job(
            prompt=[3] * 32, seeds=[bytes(16)] * 8, limit=length, eos=0, task="t", task_version=1, split="train",
            index=0, single_turn=True, tf32=tf32,
        )  # fmt: skip
        scorer = GroupScorer(model)
        (outcome,) = scorer.score([GroupToScore(job, samples)])  # the first one checks the packed pass
        if isinstance(outcome, Exception):
            raise outcome
        seconds = self._median_seconds(lambda: scorer.score([GroupToScore(job, samples)]))
        parameters = sum(one.numel() for one in model.parameters())
        yield Measurement(name="scorer_flops", value=2.0 * parameters)
        yield Measurement(name="scorer_tf32" if tf32 else "scorer", value=8 * length / seconds)

    def _model(self, dtype: Any) -> Any:
        """Return a model of random values (rule 2)."""
        from transformers import Qwen3Config

        from echo2.engines.transformers.unfilled_model import allocate, build_unfilled

        shape: dict[str, Any] = {**self._sizes.shape, "tie_word_embeddings": True}
        model: Any = build_unfilled(Qwen3Config(**shape), dtype)
        allocate(model, self._device)
        with self._torch.no_grad():
            for one in model.parameters():
                one.fill_(1.0) if one.ndim == 1 else one.normal_(0, 0.02)
        return model.eval().requires_grad_(False)

    def _median_seconds(self, work: Callable[[], object]) -> float:
        """Return the median seconds of a call, waits for the device included."""
        work()
        self._wait()
        spent, began = list[float](), time.perf_counter()
        while len(spent) < 3 or time.perf_counter() - began < self._sizes.seconds:
            at = time.perf_counter()
            work()
            self._wait()
            spent.append(time.perf_counter() - at)
        return sorted(spent)[len(spent) // 2]

    def _wait(self) -> None:
        if self._device.type != "cpu":
            self._torch.accelerator.synchronize()


def main(arguments: list[str]) -> None:
    """Measure, and write a line per figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        device = choose(asked.device, TRANSFORMERS.inventory(), TRANSFORMERS.devices)
    except NoDevice as error:
        return _say(Measurement(name="no-device", fault=str(error)))
    _say(Measurement(name="device", words=device.kind))
    _say(Measurement(name="name", words=device.name))
    for one in Measuring(device.kind, sizes_for(device.kind.partition(":")[0], quick=asked.quick)).run():
        _say(one)


def _say(one: Measurement) -> None:
    print(msgspec.json.encode(one).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
