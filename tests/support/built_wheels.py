"""Wheels of echo2 as pip builds them from a source, on this machine's build requirements alone."""

import os
import subprocess
import sys
from pathlib import Path

NO_INDEX = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
}
"""Variables with which pip reaches no index; the proxy is a port at which nothing listens."""


def build(source: str, target: Path, more: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Let pip build a wheel, with the build requirements of this environment."""
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", str(target)]
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *flags, source],
        env={**os.environ, **(more or {})}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
