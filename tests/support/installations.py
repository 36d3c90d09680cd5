"""Installations as a stranger makes them: of the built wheel, in an empty environment, used from a hostile folder.

1. The checkout is not on the search path, and no compiler is on PATH.
2. The folder in which commands run holds files whose names we import; each ends the process that imports it.
3. HOME is a folder of the test's own, so that nothing of this user counts.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

HOSTILE: Final = (
    "tasks.py", "node.py", "weights.py", "msgpack.py", "typer.py", "coordinator/__init__.py", "echo2/__init__.py",
    "benchmarks/__init__.py",
)  # fmt: skip
_PATIENCE: Final = 900.0
_KEPT: Final = ("PIP_", "UV_", "XDG_CONFIG_DIRS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "LANG", "TMPDIR", "_proxy")
_SIZE: Final = """
import importlib.metadata as metadata
files = {
    path.locate() for one in metadata.distributions() if one.name not in ("pip", "setuptools")
    for path in one.files or () if path.suffix != ".pyc"
}
print(sum(path.stat().st_size for path in files if path.is_file()))
"""


class Installation:
    """An environment and its hostile folder. `folder`: empty so far; it gets `venv`, `home` and `elsewhere`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv = folder, folder / "venv"
        self.bin = self.venv / "bin"
        self.elsewhere, self.home = folder / "elsewhere", folder / "home"
        for name in HOSTILE:
            file = self.elsewhere / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text('raise SystemExit(f"the hostile {__file__} was imported")\n')
        self.home.mkdir()

    def make(self, *requirements: str, flags: Sequence[str] = ()) -> "Installation":
        """Make the environment and let pip install the requirements, in one command."""
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True, env=self.environment())
        if requirements:
            self.check("python", "-m", "pip", "install", "--quiet", *flags, *requirements)
        return self

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of a stranger's shell: PATH leads to this environment and nowhere else."""
        kept = {name: value for name, value in os.environ.items() if any(one in name for one in _KEPT)}
        cache = os.environ.get("PIP_CACHE_DIR") or str(Path("~/.cache/pip").expanduser())
        ours = {
            "HOME": str(self.home), "PATH": str(self.bin), "PIP_CACHE_DIR": cache, "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive", "COLUMNS": "200",
        }  # fmt: skip
        return {**kept, **ours, **(more or {})}

    def run(
        self, program: str, *words: str, more: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment in the hostile folder; its two outputs come as one."""
        return subprocess.run(
            [str(self.bin / program), *words], cwd=self.elsewhere, env=self.environment(more), text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_PATIENCE,
        )  # fmt: skip

    def check(self, program: str, *words: str) -> str:
        """Run a program; return what it prints. Fails the test where its exit status is not 0."""
        done = self.run(program, *words)
        assert done.returncode == 0, f"{program} {' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def code(self, source: str) -> str:
        """Run a piece of Python with the hostile folder off its path; return what it prints."""
        return self.check("python", "-P", "-c", source)

    def size(self) -> int:
        """Return the bytes of all installed files, without pip and the bytecode that Python writes."""
        return int(self.code(_SIZE))

    @contextmanager
    def running(self, program: str, *words: str, more: Mapping[str, str] | None = None) -> Iterator[Path]:
        """Keep a program running; yield the file of its output. It is stopped at the end."""
        log = self.folder / f"{Path(program).name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(self.bin / program), *words], cwd=self.elsewhere, env=self.environment(more),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def invite(self, run: Path, log: Path) -> str:
        """Wait until a run's coordinator is up; return its invite."""
        for _ in range(600):
            done = self.run("echo2-coord", "invite", "--home", str(run))
            if done.returncode == 0:
                return done.stdout.split()[-1]
            time.sleep(0.5)
        raise AssertionError(f"the coordinator gave no invite:\n{log.read_text()}")

    def accepted(self, invite: str, *words: str) -> dict[str, Any]:
        """Join, work for one group and leave; return its receipt, a row of `echo2-node receipts list --json`."""
        home = self.folder / f"node-{len(list(self.folder.glob('node-*')))}"
        told = self.check("echo2-node", "join", invite, "--once", "--home", str(home), *words)
        listed = self.check("echo2-node", "receipts", "list", "--json", "--home", str(home)).splitlines()
        assert listed, f"no receipt; the node said:\n{told}"
        receipt: dict[str, Any] = json.loads(listed[0])
        return receipt
