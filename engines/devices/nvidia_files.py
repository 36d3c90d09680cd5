"""Have NVIDIA's own program make the device files that CUDA needs, where its driver is there and they are not.

CUDA starts that program itself, at a machine's first use of a GPU. It runs with the rights of its owner, root, which a
process in a user namespace cannot give it: so it is started before.

Source: nvidia-modprobe(1).
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

_DEVICES: Final = Path("/dev")
_PROGRAM: Final = "nvidia-modprobe"
_PROGRAM_SECONDS: Final = 30.0


def make(devices: Path = _DEVICES, driver: Path = Path("/proc/driver/nvidia")) -> None:
    """Make the files, if there is an NVIDIA driver without them. What the program says is CUDA's to say later."""
    if not driver.exists() or (devices / "nvidia-uvm").exists():
        return
    program = shutil.which(_PROGRAM)
    if program is None:
        return
    try:
        subprocess.run([program, "-u", "-c", "0"], capture_output=True, timeout=_PROGRAM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
