"""The system calls that an environment's process may not make: a seccomp filter, installed without privileges on Linux.

Rules
1. Without `network` the call socket fails with EACCES. A socketpair within the process stays possible.
2. Without `subprocesses` fork, vfork and a clone that makes no thread fail with EPERM. clone3, whose flags a filter
   cannot read, fails with ENOSYS: the C library then uses clone.
3. io_uring, which could open sockets without the call socket, fails with ENOSYS, and so does every call in another
   architecture's numbers with EPERM.
4. The filter binds the process, its threads and its children until they end. No new privileges can be had.

Source: seccomp(2), linux/filter.h and linux/audit.h. Only x86_64 and aarch64 on Linux are known; elsewhere
`install` says so.
"""

import ctypes
import errno
import platform
import sys
from typing import Final, NamedTuple

_LOAD: Final = 0x20
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERROR: Final = 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_CLONE_THREAD: Final = 0x10000
_OTHER_NUMBERS: Final = 0x40000000
"""From here on x86_64 has the numbers of its x32 calls."""
_SET_NO_NEW_PRIVILEGES: Final = 38
_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2


class Instruction(NamedTuple):
    """An instruction of classic BPF. `yes`, `no`: instructions to skip where a comparison is true, or false."""

    code: int
    yes: int
    no: int
    value: int


class _Calls(NamedTuple):
    """An architecture: its name to the kernel, and its numbers of the calls concerned."""

    architecture: int
    socket: int
    clone: int
    forks: tuple[int, ...]


_CALLS: Final = {
    "x86_64": _Calls(0xC000003E, 41, 56, (57, 58)),
    "aarch64": _Calls(0xC00000B7, 198, 220, ()),
}
_CLONE3: Final = 435
_IO_URING_SETUP: Final = 425


class FilterUnavailable(Exception):
    """This system has no such filter; the message says why."""


def rules(machine: str, *, network: bool, subprocesses: bool) -> list[Instruction]:
    """Return the filter's program for a machine, as platform.machine() names it. Raises `FilterUnavailable`."""
    calls = _CALLS.get(machine)
    if calls is None:
        raise FilterUnavailable(f"the system calls of {machine} are not known")
    program = [Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT), Instruction(_EQUAL, 1, 0, calls.architecture)]
    program += [_error(errno.EPERM), Instruction(_LOAD, 0, 0, _NUMBER_AT)]
    program += [Instruction(_AT_LEAST, 0, 1, _OTHER_NUMBERS), _error(errno.EPERM)]
    program += _fails(_IO_URING_SETUP, errno.ENOSYS)
    if not network:
        program += _fails(calls.socket, errno.EACCES)
    if not subprocesses:
        program += [instruction for number in calls.forks for instruction in _fails(number, errno.EPERM)]
        program += _fails(_CLONE3, errno.ENOSYS)
        program += [Instruction(_EQUAL, 0, 3, calls.clone), Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
        program += [Instruction(_ANY_BIT, 1, 0, _CLONE_THREAD), _error(errno.EPERM)]
    return [*program, Instruction(_RETURN, 0, 0, _ALLOW)]


def _fails(number: int, error: int) -> list[Instruction]:
    return [Instruction(_EQUAL, 0, 1, number), _error(error)]


def _error(number: int) -> Instruction:
    return Instruction(_RETURN, 0, 0, _ERROR | number)


class _Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Filter)))


def install(*, network: bool, subprocesses: bool) -> None:
    """Install the filter in this process, before it starts threads. Raises `FilterUnavailable`."""
    if network and subprocesses:
        return
    if not sys.platform.startswith("linux"):
        raise FilterUnavailable(f"{sys.platform} has no seccomp")
    program = rules(platform.machine(), network=network, subprocesses=subprocesses)
    instructions = (_Filter * len(program))(*(_Filter(*one) for one in program))
    order = _Program(len(program), instructions)
    library = ctypes.CDLL(None, use_errno=True)
    for call in ((_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.byref(order), 0, 0)):
        if library.prctl(*call) != 0:
            raise FilterUnavailable(f"the kernel refuses a seccomp filter ({errno.errorcode[ctypes.get_errno()]})")
