"""Makes `echo2/_libp2p` (bundle_libp2p.py), and compiles `weights/codec/native/classes.c` into the wheel and, for an
editable installation, beside its source.

Without a compiler, or with one that fails, nothing is built and nothing breaks: `weights.codec.exponent_classes` does
the same in numpy. CC is another compiler's command; ECHO2_NATIVE=0 builds nothing, ECHO2_NATIVE=1 turns a failure into
an error.
"""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder

AVX2 = ["-mavx2", "-mbmi", "-mbmi2", "-mpopcnt", "-mlzcnt"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vbmi", "-mavx512vbmi2"]
AVX512 += ["-mavx512vpopcntdq", "-mgfni"]
ARCHITECTURES = shlex.split(os.environ.get("ARCHFLAGS", "")) if sys.platform == "darwin" else []
"""Flags for the processors of a wheel for macOS, where they are named; else the compiler builds for this machine."""
PROCESSORS = {word for word in ARCHITECTURES if word != "-arch"} or {platform.machine().lower()}
PACKAGES = ("coordinator", "engines", "ledger", "node", "p2p", "protocol", "runtime", "tasks", "weights")
LOCKS = ("build", "torch", "torch-cpu", "vllm", "vllm-cuda")
"""Locks of which an installation makes the environment of vLLM (node/control/engine_install.py)."""
LEVELS = [[], AVX2, AVX512] if PROCESSORS.issubset(("x86_64", "amd64")) else [[]]


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        check_links(Path(self.root) / "echo2")
        bundle_libp2p(Path(self.root))
        if self.target_name != "wheel":
            return
        for name in LOCKS if version == "standard" else ():
            source = Path(self.root) / f"requirements-{name}.lock"
            build_data["force_include"][str(source)] = f"echo2/engines/vllm/{source.name}"
        built = compile_levels(Path(self.root) / "echo2" / "weights" / "codec" / "native")
        for path in built:
            build_data["force_include"][str(path)] = f"echo2/weights/codec/native/{path.name}"
        if built:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_of(self.build_config.builder)}"


def check_links(folder: Path) -> None:
    """Check that the packages are there: a zip archive turns each link into a file that holds its target's name."""
    if not all((folder / name).is_dir() for name in PACKAGES):
        sys.exit("echo2's links were lost on the way, as in a zip archive: install from git, a .tar.gz or a wheel")


def bundle_libp2p(root: Path) -> None:
    """Run `ensure` of the module beside this one, which the build backend's path does not have."""
    spec = importlib.util.spec_from_file_location("bundle_libp2p", root / "bundle_libp2p.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        module.ensure(root)
    except module.Broken as error:
        raise SystemExit(str(error)) from None


def platform_of(builder: WheelBuilder) -> str:
    """Return the platform for which the compiler builds. sysconfig names the one of Python: universal2 on macOS, though
    the library is for one processor."""
    return builder.get_best_matching_tag().rpartition("-")[2]


def compile_levels(folder: Path) -> list[Path]:
    """Build `classesN.so` for each level; those that are there afterwards, or none. Another build at the same time
    always finds its own: each compiles in a folder of its own, and takes away only what it does not put there."""
    wanted, compiler = os.environ.get("ECHO2_NATIVE"), find_compiler()
    built: list[Path] = []
    try:
        if wanted != "0" and os.name == "posix" and (compiler or wanted == "1"):
            with tempfile.TemporaryDirectory(prefix="classes-", suffix=".tmp", dir=folder) as own:
                fresh = [_compile(compiler, folder, Path(own), level, flags) for level, flags in enumerate(LEVELS)]
                built = [path.replace(folder / path.name) for path in fresh]
    except (OSError, subprocess.CalledProcessError) as error:
        if wanted == "1":
            raise
        print(f"weights/codec/native is not built, which costs speed only: {error}", file=sys.stderr)
    finally:
        for stale in set(folder.glob("classes?.so")).difference(built):
            stale.unlink(missing_ok=True)
    return built


def find_compiler() -> list[str]:
    """Return the command of a C compiler; empty where there is none."""
    commands = [shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]]
    return next((command for command in commands if command and shutil.which(command[0])), [])


def _compile(compiler: list[str], folder: Path, own: Path, level: int, flags: list[str]) -> Path:
    target = own / f"classes{level}.so"
    command = [*compiler, "-O3", "-std=c99", "-fPIC", "-shared", "-fvisibility=hidden", *ARCHITECTURES, *flags]
    subprocess.run([*command, str(folder / "classes.c"), "-o", str(target)], check=True, capture_output=True)
    return target
