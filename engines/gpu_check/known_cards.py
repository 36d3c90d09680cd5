"""The peaks of some cards, by the names that CUDA gives them: the makers' data sheets, without sparsity."""

from typing import Final, NamedTuple


class Peaks(NamedTuple):
    """`memory`: GB per second. The others: 1e12 floating-point operations per second of a product of matrices in
    bfloat16, TF32 and float32; 0: the card has no such units."""

    memory: float
    bfloat16: float
    tf32: float
    float32: float


PEAKS: Final[dict[str, Peaks]] = {
    "NVIDIA H200": Peaks(4800, 989, 495, 67),
    "NVIDIA H100 80GB HBM3": Peaks(3352, 989, 495, 67),
    "NVIDIA H100 PCIe": Peaks(2039, 756, 378, 51),
    "NVIDIA A100-SXM4-80GB": Peaks(2039, 312, 156, 19.5),
    "NVIDIA A100 80GB PCIe": Peaks(1935, 312, 156, 19.5),
    "NVIDIA A100-SXM4-40GB": Peaks(1555, 312, 156, 19.5),
    "NVIDIA L40S": Peaks(864, 362, 183, 91.6),
    "NVIDIA L4": Peaks(300, 121, 60, 30.3),
    "NVIDIA A10": Peaks(600, 125, 62.5, 31.2),
    "NVIDIA RTX A6000": Peaks(768, 154.8, 77.4, 38.7),
    "Tesla T4": Peaks(320, 0, 0, 8.1),
    "NVIDIA GeForce RTX 5090": Peaks(1792, 209.5, 104.8, 104.8),
    "NVIDIA GeForce RTX 4090": Peaks(1008, 165.2, 82.6, 82.6),
    "NVIDIA GeForce RTX 4080": Peaks(717, 97.5, 48.7, 48.7),
    "NVIDIA GeForce RTX 4070": Peaks(504, 58.3, 29.1, 29.1),
    "NVIDIA GeForce RTX 3090": Peaks(936, 71.2, 35.6, 35.6),
    "NVIDIA GeForce RTX 3060": Peaks(360, 25.5, 12.7, 12.7),
}
