"""A bound on what the process allocates meanwhile: it holds in the block alone, and a lower one stays."""

import subprocess
import sys

import pytest

from echo2.runtime.python_command import code_command

PROGRAM = """
import resource
from echo2.runtime.address_space import at_most

def takes(nbytes):
    try:
        bytearray(nbytes)
    except MemoryError:
        return False
    return True

before = resource.getrlimit(resource.RLIMIT_AS)
with at_most(64 << 20):
    inside = takes(32 << 20), takes(128 << 20)
assert resource.getrlimit(resource.RLIMIT_AS) == before
after = takes(128 << 20)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), before[1]))
with at_most(256 << 20):
    lower = takes(128 << 20)
print(inside, after, lower)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds the address space")
def test_the_bound_holds_in_the_block_and_a_lower_limit_stays() -> None:
    done = subprocess.run(code_command(PROGRAM), capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "(True, False) True False\n", done.stderr
