"""Put hashes into the locks that `make lock` wrote as lists of versions: `python -m tests.locks`, with uv beside it.

uv names the hashes of all files of a release, for every platform and Python. PyTorch goes into a lock of its own,
without hashes, and so do packages that are published as source alone, with them (docs/adr/0038-hashes-in-the-locks.md).
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

PLAIN: Final = ("requirements.lock", "requirements-light.lock", "requirements-llama.lock", "requirements-smollm2.lock")
SOURCE: Final = ("python-baseconv", "varint")
WRITTEN: Final = "# Written by `make lock`"
_UV: Final = ("pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "-")


def hashed(versions: list[str]) -> str:
    """Return these requirements with the hashes of all their files."""
    command = [str(Path(sys.executable).with_name("uv")), *_UV, "--python", sys.executable]
    return subprocess.run(command, input="\n".join(versions), check=True, capture_output=True, text=True).stdout


def names(line: str) -> str:
    """Return the distribution that a line of a lock names."""
    return line.partition("==")[0].lower()


def write(name: str, note: str, versions: list[str], *, with_hashes: bool = True) -> None:
    """Write a lock."""
    body = hashed(versions) if with_hashes else "\n".join(versions) + "\n"
    (ROOT / name).write_text(f"{WRITTEN}: {note}. Do not edit.\n{body}")


def main() -> None:
    """Divide and hash the locks."""
    whole = [line for line in (ROOT / PLAIN[0]).read_text().splitlines() if not line.startswith("#")]
    libp2p = re.findall(r"^LIBP2P := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    write("requirements-torch.lock", "PyTorch, without hashes: docs/adr/0038-hashes-in-the-locks.md",
          [line for line in whole if names(line) == "torch"], with_hashes=False)  # fmt: skip
    source = "what is published as source alone. Install with --no-deps --no-build-isolation"
    write("requirements-source.lock", source, [line for line in whole if names(line) in SOURCE])
    write("requirements-build.lock", "what builds requirements-source.lock",
          [line for line in whole if names(line) == "setuptools"])  # fmt: skip
    write(
        "requirements-libp2p.lock", "libp2p (docs/adr/0001-libp2p-without-its-pins.md). Install with --no-deps", libp2p
    )
    for name in PLAIN:
        head, *lines = (ROOT / name).read_text().splitlines()
        kept = [line for line in lines if names(line) not in ("torch", *SOURCE)]
        (ROOT / name).write_text(f"{head}\n{hashed(kept)}")


if __name__ == "__main__":
    main()
