"""Put hashes into the locks that `make lock` wrote as lists of versions: `python -m tests.locks`, with uv beside it.

uv names the hashes of all files of a release, for every platform and Python. PyTorch goes into a lock of its own,
without hashes (docs/adr/0038-hashes-in-the-locks.md). So does py-libp2p with what it loads, for the bundle and for the
environment that has it as published (docs/adr/0062-libp2p-in-our-wheel.md).
"""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

STOCK: Final = "requirements-stock.lock"
PLAIN: Final = (
    "requirements.lock",
    "requirements-light.lock",
    "requirements-smollm2.lock",
    STOCK,
)
SOURCE: Final = ("python-baseconv", "varint")
BUNDLED: Final = ("libp2p", "multiaddr", "noiseprotocol")
BUILD: Final = ("editables", "hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")
WRITTEN: Final = "# Written by `make lock`"
_UV: Final = ("pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "-")


def hashed(versions: list[str]) -> str:
    """Return these requirements with the hashes of all their files, and with the markers of pyproject.toml."""
    command = [str(Path(sys.executable).with_name("uv")), *_UV, "--python", sys.executable]
    text = subprocess.run(command, input="\n".join(versions), check=True, capture_output=True, text=True).stdout
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement, _, marker in (need.partition(";") for need in needs if ";" in need):
        text = text.replace(f"{requirement} \\\n", f"{requirement} ; {marker.strip()} \\\n")
    return text


def names(line: str) -> str:
    """Return the distribution that a line of a lock names."""
    return line.partition("==")[0].lower()


def versions(name: str) -> list[str]:
    """Return the lines of a lock that is a list of versions yet."""
    return [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]


def write(name: str, note: str, lines: list[str], *, with_hashes: bool = True) -> None:
    """Write a lock."""
    body = hashed(lines) if with_hashes else "\n".join(lines) + "\n"
    (ROOT / name).write_text(f"{WRITTEN}: {note}. Do not edit.\n{body}")


def main() -> None:
    """Divide and hash the locks."""
    whole, stock = versions(PLAIN[0]), versions(STOCK)
    write("requirements-torch.lock", "PyTorch, without hashes: docs/adr/0038-hashes-in-the-locks.md",
          [line for line in whole if names(line) == "torch"], with_hashes=False)  # fmt: skip
    write("requirements-build.lock", "what builds echo2. Install with --no-deps",
          [line for line in whole if names(line) in BUILD])  # fmt: skip
    write("requirements-libp2p.lock",
          "what bundle_libp2p.py puts into the wheel (docs/adr/0062-libp2p-in-our-wheel.md)",
          [line for line in stock if names(line) in BUNDLED])  # fmt: skip
    source = f"what {STOCK} needs and is published as source alone. Install with --no-deps --no-build-isolation"
    write("requirements-source.lock", source, [line for line in stock if names(line) in SOURCE])
    for name in PLAIN:
        head, *lines = (ROOT / name).read_text().splitlines()
        kept = [line for line in lines if names(line) not in ("torch", *SOURCE)]
        (ROOT / name).write_text(f"{head}\n{hashed(kept)}")


if __name__ == "__main__":
    main()
