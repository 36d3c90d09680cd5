"""The machines that one computer can stand in for: engine processes under what changes the rounding of a model's pass.

Rules
1. A Calibration takes the machines of its engine and device together; `python -m benchmarks.trust` leaves out one at a
   time. Both read the table here.
2. Rows: a step of more rows sums in another order. A row limit (engines/batch/row_limit.py) may keep them fewer.
3. Prompts: `alone` makes each sample a job of its own, so that its prompt is computed for it, beside those of others,
   instead of once for all.
4. Threads and instruction sets concern CPUs alone, and the variables of PyTorch and oneDNN transformers alone.
5. Transformers rounds as other kernels do, too (engines/transformers/roundings.py): its machines stand in for engines
   and devices that this computer lacks.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class MixedMachine(NamedTuple):
    """A process that stands in for a machine. `rows`: samples per group. `env`: further variables of its process.
    `alone`: see rule 3."""

    rows: int = 16
    threads: int = 1
    env: Mapping[str, str] = {}
    alone: bool = False


ANY_DEVICE: Final[Mapping[str, MixedMachine]] = {
    "8 rows": MixedMachine(rows=8),
    "64 rows": MixedMachine(rows=64),
    "128 rows": MixedMachine(rows=128),
    "each prompt alone": MixedMachine(alone=True),
}
OTHER_KERNELS: Final[Mapping[str, MixedMachine]] = {
    "sums in four parts": MixedMachine(env={"ECHO2_ROUNDING": "split-sums"}),
    "eager attention": MixedMachine(env={"ECHO2_ROUNDING": "eager-attention"}),
    "fused norms": MixedMachine(env={"ECHO2_ROUNDING": "fused-norms"}),
}
ANY_CPU: Final[Mapping[str, MixedMachine]] = {"2 threads": MixedMachine(threads=2)}
TORCH_CPU: Final[Mapping[str, MixedMachine]] = {
    "PyTorch without AVX": MixedMachine(env={"ATEN_CPU_CAPABILITY": "default"}),
    "PyTorch with AVX2": MixedMachine(env={"ATEN_CPU_CAPABILITY": "avx2"}),
    "oneDNN with SSE 4.1": MixedMachine(env={"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "oneDNN with AVX2": MixedMachine(env={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
}


def mixed_machines(engine: str, device: str) -> dict[str, MixedMachine]:
    """Return the machines of an engine on a kind of device, by name."""
    machines = dict(ANY_DEVICE)
    if engine == "transformers":
        machines |= OTHER_KERNELS
    if device == "cpu":
        machines |= ANY_CPU
        if engine == "transformers":
            machines |= TORCH_CPU
    return machines
