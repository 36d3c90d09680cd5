"""The system calls that a child process may not make: a seccomp filter, installed without privileges on Linux.

Rules
1. Sockets are those that `sockets` names; for others the call socket fails with EACCES. `none`: a socketpair within the
   process is all that is possible. `local`: sockets of this machine's kernel, Unix ones, which drivers of devices use,
   and netlink. `streams`: these and TCP's. `datagrams`: these, TCP's and UDP's. `all`: any.
2. With `streams` and `datagrams` a send that also connects (TCP Fast Open) fails with EPERM: rules of ports
   (runtime/tcp_ports.py) do not see it.
3. Without `subprocesses` fork, vfork and a clone that makes no thread fail with EPERM. clone3, whose flags a filter
   cannot read, fails with ENOSYS: the C library then uses clone.
4. Without `subprocesses` signals, limits, reads and writes of memory and copies of open files reach no other process,
   the parent least of all: such calls fail with EPERM unless they name the process itself. A file of /proc is no such
   call: the daemon closes its own (runtime/own_memory.py). With `subprocesses` a namespace of process ids keeps the
   parent out of reach (coordinator/environments/own_processes.py).
5. io_uring, which could open sockets without the call socket, fails with ENOSYS, and so does every call in another
   architecture's numbers with EPERM.
6. The filter binds the process, all threads that it has by then, and its children until they end. No new privileges
   can be had.

Source: seccomp(2), socket(2), linux/filter.h and linux/audit.h. Only x86_64 and aarch64 on Linux are known; elsewhere
`install` says so.
"""

import ctypes
import errno
import os
import platform
import sys
from typing import Final, Literal, NamedTuple

_LOAD_CODE: Final = 0x20
_EQUAL_CODE: Final = 0x15
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_RETURN_CODE: Final = 0x06
_ALLOW_VALUE: Final = 0x7FFF0000
_ERROR: Final = 0x00050000
_AND_CODE: Final = 0x54
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ARGUMENT_BYTES: Final = 8
"""Bytes of an argument."""
_CLONE_THREAD: Final = 0x10000
_OTHER_NUMBERS: Final = 0x40000000
"""From here on x86_64 has the numbers of its x32 calls."""
_SET_NO_NEW_PRIVILEGES: Final = 38
_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _ALL_THREADS = 1, 1
_LOCAL_FAMILIES: Final = (1, 16)
"""AF_UNIX and AF_NETLINK."""
_INTERNET_FAMILIES: Final = (2, 10)
"""AF_INET and AF_INET6."""
_STREAM, _DATAGRAM = 1, 2
_KIND: Final = 0xF
"""The bits of a socket's type that are no flags."""
_TCP, _UDP = 6, 17
_FAST_OPEN: Final = 0x20000000
"""MSG_FASTOPEN: a send that also connects."""


class Instruction(NamedTuple):
    """An instruction of classic BPF. `yes`, `no`: instructions to skip where a comparison is true, or false."""

    code: int
    yes: int
    no: int
    value: int


class _Calls(NamedTuple):
    """An architecture: its name to the kernel, and its numbers of the calls concerned. `own`: kill, tgkill, prlimit64,
    rt_sigqueueinfo and rt_tgsigqueueinfo, whose first argument is a process id. `foreign`: tkill, ptrace,
    process_vm_readv and process_vm_writev. `sends`: sendto, sendmsg and sendmmsg, each with the place of its flags
    among the arguments."""

    architecture: int
    socket: int
    clone: int
    forks: tuple[int, ...]
    own: tuple[int, ...]
    foreign: tuple[int, ...]
    sends: tuple[tuple[int, int], ...]


_CALLS: Final = {
    "x86_64": _Calls(
        0xC000003E, 41, 56, (57, 58), (62, 234, 302, 129, 297), (200, 101, 310, 311), ((44, 3), (46, 2), (307, 3))
    ),
    "aarch64": _Calls(
        0xC00000B7, 198, 220, (), (129, 131, 261, 138, 240), (130, 117, 270, 271), ((206, 3), (211, 2), (269, 3))
    ),
}
_PIDFD_CALLS: Final = 424, 438
"""pidfd_send_signal and pidfd_getfd."""
_CLONE3: Final = 435
_IO_URING_SETUP: Final = 425


class FilterUnavailable(Exception):
    """This system has no such filter; the message says why."""


Sockets = Literal["none", "local", "streams", "datagrams", "all"]


def rules(machine: str, *, sockets: Sockets, subprocesses: bool, own: int = 0) -> list[Instruction]:
    """Return the filter's program for a machine, as platform.machine() names it. `own`: id of the process. Raises
    `FilterUnavailable`."""
    calls = _CALLS.get(machine)
    if calls is None:
        raise FilterUnavailable(f"the system calls of {machine} are not known")
    program = [Instruction(_LOAD_CODE, 0, 0, _ARCHITECTURE_AT), Instruction(_EQUAL_CODE, 1, 0, calls.architecture)]
    program += [_error(errno.EPERM), Instruction(_LOAD_CODE, 0, 0, _NUMBER_AT)]
    program += [Instruction(_AT_LEAST, 0, 1, _OTHER_NUMBERS), _error(errno.EPERM)]
    program += _fails(_IO_URING_SETUP, errno.ENOSYS)
    if sockets == "none":
        program += _fails(calls.socket, errno.EACCES)
    elif sockets != "all":
        program += _on_call(calls.socket, _families(sockets))
    if sockets in ("streams", "datagrams"):
        program += [one for number, flags in calls.sends for one in _on_call(number, _fast_open(flags))]
    if not subprocesses:
        program += [instruction for number in calls.forks for instruction in _fails(number, errno.EPERM)]
        program += _fails(_CLONE3, errno.ENOSYS)
        clone = [_load(0), Instruction(_ANY_BIT, 1, 0, _CLONE_THREAD), _error(errno.EPERM)]
        program += _on_call(calls.clone, clone)
        program += [one for number in (*calls.foreign, *_PIDFD_CALLS) for one in _fails(number, errno.EPERM)]
        program += [one for number in calls.own for one in _on_call(number, _reaches(own))]
    return [*program, Instruction(_RETURN_CODE, 0, 0, _ALLOW_VALUE)]


def _families(sockets: Sockets) -> list[Instruction]:
    """Return the rule of a call of socket: a local family, or a kind of an Internet one that `sockets` names."""
    unix, netlink = _LOCAL_FAMILIES
    if sockets == "local":
        return [
            _load(0),
            Instruction(_EQUAL_CODE, 2, 0, unix),
            Instruction(_EQUAL_CODE, 1, 0, netlink),
            _error(errno.EACCES),
        ]
    of_four, of_six = _INTERNET_FAMILIES
    kinds = (_STREAM, _DATAGRAM) if sockets == "datagrams" else (_STREAM, _STREAM)
    inner = [
        _load(1),
        Instruction(_AND_CODE, 0, 0, _KIND),
        Instruction(_EQUAL_CODE, 2, 0, kinds[0]),
        Instruction(_EQUAL_CODE, 1, 0, kinds[1]),
        _error(errno.EACCES),
        _load(2),
        Instruction(_EQUAL_CODE, 3, 0, 0),
        Instruction(_EQUAL_CODE, 2, 0, _TCP),
        Instruction(_EQUAL_CODE, 1, 0, _UDP if sockets == "datagrams" else _TCP),
        _error(errno.EACCES),
    ]
    allowed = len(inner)
    return [
        _load(0),
        Instruction(_EQUAL_CODE, 4 + allowed, 0, unix),
        Instruction(_EQUAL_CODE, 3 + allowed, 0, netlink),
        Instruction(_EQUAL_CODE, 2, 0, of_four),
        Instruction(_EQUAL_CODE, 1, 0, of_six),
        _error(errno.EACCES),
        *inner,
    ]


def _fast_open(flags: int) -> list[Instruction]:
    """Return the rule of a call that sends: it does not connect (rule 2). `flags`: their place among the arguments."""
    return [_load(flags), Instruction(_ANY_BIT, 0, 1, _FAST_OPEN), _error(errno.EPERM)]


def _reaches(own: int) -> list[Instruction]:
    """Return a call's rule: its first argument is the process itself, by its id or by 0."""
    return [_load(0), Instruction(_EQUAL_CODE, 2, 0, 0), Instruction(_EQUAL_CODE, 1, 0, own), _error(errno.EPERM)]


def _on_call(number: int, rule: list[Instruction]) -> list[Instruction]:
    """Return a rule for one call. It falls through where it allows the call, and the number is loaded again."""
    return [Instruction(_EQUAL_CODE, 0, len(rule) + 1, number), *rule, Instruction(_LOAD_CODE, 0, 0, _NUMBER_AT)]


def _load(argument: int) -> Instruction:
    """Load the low half of an argument, by its place from 0."""
    return Instruction(_LOAD_CODE, 0, 0, _FIRST_ARGUMENT_AT + _ARGUMENT_BYTES * argument)


def _fails(number: int, error: int) -> list[Instruction]:
    return [Instruction(_EQUAL_CODE, 0, 1, number), _error(error)]


def _error(number: int) -> Instruction:
    return Instruction(_RETURN_CODE, 0, 0, _ERROR | number)


class _Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Filter)))


def install(*, sockets: Sockets, subprocesses: bool) -> None:
    """Install the filter in this process and all of its threads. Raises `FilterUnavailable`."""
    if sockets == "all" and subprocesses:
        return
    if not sys.platform.startswith("linux"):
        raise FilterUnavailable(f"{sys.platform} has no seccomp")
    program = rules(platform.machine(), sockets=sockets, subprocesses=subprocesses, own=os.getpid())
    instructions = (_Filter * len(program))(*(_Filter(*one) for one in program))
    order = _Program(len(program), instructions)
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0 or _set_filter(library, order) != 0:
        raise FilterUnavailable(f"the kernel refuses a seccomp filter ({errno.errorcode.get(ctypes.get_errno(), '?')})")


def _set_filter(library: ctypes.CDLL, order: _Program) -> int:
    """Set the filter for all threads; where the kernel cannot, for this one. Return 0 if it did."""
    call = _SECCOMP[platform.machine()]
    done: int = library.syscall(call, _SET_FILTER, _ALL_THREADS, ctypes.byref(order))
    return done if done == 0 else int(library.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(order), 0, 0))
