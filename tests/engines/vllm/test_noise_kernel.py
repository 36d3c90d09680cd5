"""The kernel of noise in Triton's interpreter, against the definition in plain Python and against PyTorch."""

import os
import subprocess
import sys

import pytest

from tests.support import vllm_models
from tests.support.paths import ROOT

pytestmark = vllm_models.INTERFACES
PROGRAM = """
import numpy as np, torch
from echo2.engines.sampling import sampling, sampling_reference as reference
from echo2.engines.vllm import noise_kernel

seeds = [bytes([number]) * 16 for number in range(6)]
keys = sampling.keys([(seed, 7 * number) for number, seed in enumerate(seeds)])
noise = noise_kernel.add_noise(torch.zeros(6, 301), keys, torch.arange(6))
for number, seed in enumerate(seeds):
    key = reference.key(seed, 7 * number)
    right = np.array([reference.gumbel(reference.bits(key, token)) for token in range(301)])
    off = np.abs(noise[number].numpy() - right) / np.maximum(1.0, np.abs(right))
    assert off.max() < 1e-6, off.max()

logits = torch.randn(6, 5003, generator=torch.Generator().manual_seed(1)) * 3
rows = torch.tensor([4, 0, 3])
ours = noise_kernel.add_noise(logits.clone(), keys[:3], rows)
plain = sampling.add_noise_of(logits.clone(), keys[:3], rows)
assert ours.argmax(-1).tolist() == plain.argmax(-1).tolist()
assert torch.equal(ours[[1, 2, 5]], logits[[1, 2, 5]])
assert (ours - plain).abs().max() < 1e-5



assert noise_kernel.working_kernel(torch.device("cpu")) is noise_kernel.add_noise
noise_kernel.ROUNDING = 0.0
noise_kernel.sampling.add_noise_of = lambda logits, key, rows=None: logits + 1.0
assert noise_kernel.working_kernel(torch.device("cpu")) is None
noise_kernel.add_noise = lambda *_: 1 / 0
assert noise_kernel.working_kernel(torch.device("cpu")) is None
print("as it should be")
"""


def test_the_kernel_is_the_definition_and_is_dropped_where_it_is_not() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("as it should be\n")
