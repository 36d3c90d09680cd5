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


TOGETHER = """
import resource, threading, time
from echo2.runtime.address_space import at_most

before = resource.getrlimit(resource.RLIMIT_AS)
inside = threading.Event()

def second():
    inside.wait()
    with at_most(1 << 30):
        time.sleep(0.2)

other = threading.Thread(target=second)
other.start()
with at_most(1 << 30):
    inside.set()
    time.sleep(0.1)
other.join()
print(resource.getrlimit(resource.RLIMIT_AS) == before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds the address space")
def test_two_threads_with_a_bound_leave_no_limit() -> None:
    done = subprocess.run(code_command(TOGETHER), capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds the address space")
def test_the_bound_holds_in_the_block_and_a_lower_limit_stays() -> None:
    done = subprocess.run(code_command(PROGRAM), capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "(True, False) True False\n", done.stderr


THREADS = """
import resource, threading, time
from echo2.runtime.address_space import at_most

before = resource.getrlimit(resource.RLIMIT_AS)
first_is_in, second_comes = threading.Event(), threading.Event()

def first():
    with at_most(1 << 30):
        first_is_in.set()
        second_comes.wait()
        time.sleep(0.2)

def second():
    first_is_in.wait()
    second_comes.set()
    with at_most(1 << 30):
        one.join(5)

one, other = threading.Thread(target=first), threading.Thread(target=second)
other.start(), one.start(), one.join(), other.join()
print(resource.getrlimit(resource.RLIMIT_AS) == before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds the address space")
def test_two_threads_leave_no_bound_behind() -> None:
    """Before, the second put back what it found, the bound of the first, and the process kept it for good."""
    for _ in range(3):
        done = subprocess.run(code_command(THREADS), capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "True\n", done.stderr
