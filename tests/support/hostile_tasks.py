"""An environment's process with tasks that misbehave, in the place of coordinator.environments.environment_host."""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.attacks.reaching_task import REACHES
from echo2.coordinator.environments import environment_host
from echo2.tasks import registry
from echo2.tasks.task import Score, Split, TaskBroken, Tokenizer


def right(text: str) -> float:
    return float("a" in text)


def takes_a_while(text: str) -> float:
    time.sleep(0.5)
    return 1.0


def connects(text: str) -> float:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
    return 1.0


def forks(text: str) -> float:
    subprocess.run(["true"], check=True)
    return 1.0


STAYS = """
import fcntl, time
lock = open("../lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
time.sleep(600)
"""


def leaves_a_process(text: str) -> float:
    """Start a process with a session of its own, and wait until it has the lock beside the folder."""
    left = subprocess.Popen([sys.executable, "-c", STAYS], stdout=subprocess.PIPE, start_new_session=True)
    assert left.stdout is not None
    left.stdout.readline()
    return 1.0


def leaves_a_process_and_ends(text: str) -> float:
    leaves_a_process(text)
    os._exit(5)


def sees(text: str) -> float:
    raise RuntimeError(",".join(sorted(os.environ)) + f" {os.listdir('.')}")


def fills_the_disk(text: str) -> float:
    with open("large", "wb", buffering=0) as file:
        file.seek(64 << 20)  # the bytes before stay a hole: a busy disk would take longer than the limit of time
        file.write(bytes(1 << 20))
    return 1.0


def writes_many_files(text: str) -> float:
    for number in range(20_000):
        os.mkdir(f"{number}")
    time.sleep(60)
    return 1.0


def writes_large_files(text: str) -> float:
    for number in range(4):
        os.mkdir(f"{number}")
        with open(f"{number}/large", "wb") as file:
            file.write(os.urandom(1 << 20))
    time.sleep(60)
    return 1.0


def nests_folders(text: str) -> float:
    for _ in range(3_000):
        os.mkdir("below")
        os.chdir("below")
    time.sleep(60)
    return 1.0


def prints(text: str) -> float:
    print("x" * (2 << 20), flush=True)
    time.sleep(60)
    return 1.0


def speaks(text: str) -> float:
    print("a line", flush=True)
    for descriptor in (1, 2):
        os.write(descriptor, b"\x00\x00\x00\x05no frame\n")
    return 1.0


def hangs(text: str) -> float:
    while True:
        pass


def allocates(text: str) -> float:
    return float(len(bytearray(8 << 30)))


_KEPT: list[bytearray | int] = []
_READ = (ctypes.c_char * 8)()


def signals_its_parent(text: str) -> float:
    os.kill(os.getppid(), signal.SIGCONT)  # of no effect; any other signal would go the same way
    return 1.0


def signals_all(text: str) -> float:
    os.kill(-1, 0)
    return 1.0


def limits_its_parent(text: str) -> float:
    return float(resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)[0])


def signals_its_parent_by_a_descriptor(text: str) -> float:
    signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGCONT)
    return 1.0


def _called(done: int) -> float:
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return 1.0


def reads_its_parents_memory(text: str) -> float:
    part = (ctypes.c_uint64 * 2)(ctypes.addressof(_READ), 8)
    library = ctypes.CDLL(None, use_errno=True)
    return _called(library.process_vm_readv(os.getppid(), part, 1, part, 1, 0))


def takes_a_file_of_its_parent(text: str) -> float:
    parent = os.pidfd_open(os.getppid())
    return _called(ctypes.CDLL(None, use_errno=True).syscall(438, parent, 0, 0))  # pidfd_getfd


def signals_itself(text: str) -> float:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)
    return 1.0


def leaks_memory(text: str) -> float:
    _KEPT.append(bytearray(600 << 20))
    return 1.0


def leaks_files(text: str) -> float:
    for _ in range(100_000 if _KEPT else 1):
        _KEPT.append(os.dup(0))
    return 1.0


def ends_with_a_long_word(text: str) -> float:
    os.write(2, b"<b>\x1b[31m\n\x1b[31m" + b"x" * 60_000)
    os._exit(3)


def breaks_at_length(text: str) -> float:
    raise TaskBroken("y" * (1 << 20))


def threads(text: str) -> float:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(float, [1, 2]))


SCORES: dict[str, Callable[[str], float]] = {
    "right": right,
    "raises": lambda text: 1 / 0,
    "is no number": lambda text: float("nan"),
    "returns a word": lambda text: "much",  # type: ignore[arg-type, return-value]
    "recurses": lambda text: repr(eval("[" * 50_000 + "]" * 50_000)) and 1.0,
    "ends": lambda text: sys.exit(3),
    "dies": lambda text: os._exit(4),
    "takes a while": takes_a_while,
    "gets ready": right,
    "hangs": hangs,
    "allocates": allocates,
    "prints": prints,
    "speaks": speaks,
    "fills the disk": fills_the_disk,
    "writes many files": writes_many_files,
    "writes large files": writes_large_files,
    "nests folders": nests_folders,
    "connects": connects,
    "forks": forks,
    "signals its parent": signals_its_parent,
    "signals all": signals_all,
    "limits its parent": limits_its_parent,
    "signals its parent by a descriptor": signals_its_parent_by_a_descriptor,
    "reads its parent's memory": reads_its_parents_memory,
    "takes a file of its parent": takes_a_file_of_its_parent,
    "signals itself": signals_itself,
    "aborts": lambda text: os.abort(),
    "sees": sees,
    "leaves a process": leaves_a_process,
    "leaves a process and ends": leaves_a_process_and_ends,
    "threads": threads,
    "leaks memory": leaks_memory,
    "leaks files": leaks_files,
    "ends with a long word": ends_with_a_long_word,
    "breaks at length": breaks_at_length,
    **{f"reaches for {what}": lambda text, reach=reach: bool(reach(int(text))) for what, reach in REACHES.items()},  # type: ignore[misc]
}


class _Attempt:
    def __init__(self, rule: Callable[[str], float], text: Tokenizer) -> None:
        self.prompt = text.encode("a=")
        self._rule, self._text, self._said = rule, text, ""

    def reply(self, sampled: Sequence[int]) -> None:
        self._said = self._text.decode(sampled)

    def score(self) -> Score:
        return Score(self._rule(self._said), True)


SIZES: dict[str, int] = {"no prompts": 0, "prompts below none": -5, "10^30 prompts": 10**30, "ten prompts": "ten"}  # type: ignore[dict-item]


class ScoredBy:
    """A task whose score misbehaves as its name says."""

    is_ready = False

    def __init__(self, name: str) -> None:
        self.name, self.version = name, 1

    def size(self, split: Split) -> int:
        return SIZES.get(self.name, 10)

    def ready(self, text: Tokenizer) -> None:
        if self.name == "gets ready":
            time.sleep(1.5)
            self.is_ready = True

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Attempt:
        if self.name == "gets ready" and not self.is_ready:
            raise RuntimeError("not ready")
        return _Attempt(SCORES[self.name], text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        raise NotImplementedError


OF_THIS_PROCESS = str(int.from_bytes(os.urandom(3)))
"""In its own namespace each process has the same id."""


def counts(said: list[str], left: int) -> str:
    return f"{len(said)}{left}"


def depends_on_its_process(said: list[str], left: int) -> str:
    return OF_THIS_PROCESS


def never_answers(said: list[str], left: int) -> str:
    while True:
        pass


def hangs_in_its_third_turn(said: list[str], left: int) -> str:
    while len(said) > 2:
        pass
    return "1"


def hangs_at_x(said: list[str], left: int) -> str:
    while said[-1] == "x":
        pass
    return OF_THIS_PROCESS


def ends_at_x(said: list[str], left: int) -> str:
    if said[-1] == "x":
        os._exit(4)
    return OF_THIS_PROCESS


def slow(said: list[str], left: int) -> str:
    time.sleep(0.3 if said[-1] == "slow" else 0.0)
    return "1"


def counts_the_open(said: list[str], left: int) -> str:
    time.sleep(0.3 if said[-1] == "slow" else 0.0)
    return str(_Talk.open)


def breaks_for_good(said: list[str], left: int) -> str:
    raise TaskBroken("its server is silent")


def ends_with(reward: object) -> Callable[[list[str], int], str]:
    """Return answers after which the episode is scored with a reward that is none."""

    def answers(said: list[str], left: int) -> str:
        return f"{left}"

    answers.reward = reward  # type: ignore[attr-defined]
    return answers


ANSWERS: dict[str, Callable[[list[str], int], str]] = {
    "counts": counts,
    "depends on its process": depends_on_its_process,
    "never answers": never_answers,
    "hangs in its third turn": hangs_in_its_third_turn,
    "hangs at x and depends on its process": hangs_at_x,
    "ends its process at x and depends on it": ends_at_x,
    "talks for ever": slow,
    "counts the open episodes": counts_the_open,
    "breaks for good": breaks_for_good,
    "answers nothing": lambda said, left: "",
    "breaks": lambda said, left: str(1 / 0),
    "answers megabytes": lambda said, left: "7" * 12_000_000,
    "ends without a number": ends_with(float("nan")),
    "ends without a reward": ends_with(None),
}


LENGTHS = {hangs_in_its_third_turn: 9, slow: 99}
"""Turns of episodes that are longer than usual."""


class _Talk:
    """An episode of `AnsweredBy`. `open`: those of this process that were not left."""

    open = 0

    def __init__(self, rule: Callable[[list[str], int], str], text: Tokenizer) -> None:
        _Talk.open += 1
        self.prompt, self._turns = text.encode("a="), LENGTHS.get(rule, 3)
        self._rule, self._text, self._said = rule, text, list[str]()

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._said.append(self._text.decode(sampled))
        left = self._turns - len(self._said)
        return self._text.encode(self._rule(self._said, left)) if left else None

    def score(self) -> Score:
        return Score(getattr(self._rule, "reward", float(len("".join(self._said)))), True)

    def leave(self) -> None:
        _Talk.open -= 1


class AnsweredBy:
    """A task of three turns whose answers misbehave as its name says."""

    turns = 3

    def __init__(self, name: str) -> None:
        self.name, self.version = name, 1

    def size(self, split: Split) -> int:
        return 10

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Talk:
        return _Talk(ANSWERS[self.name], text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        raise NotImplementedError


OPENINGS: dict[str, Callable[[int, str], str | None]] = {
    "is dealt a number": lambda number, prompt: str(number),
    "says its prompt": lambda number, prompt: prompt,
    "opens with nothing": lambda number, prompt: "",
    "ends at its opening": lambda number, prompt: None,
    "breaks at its opening": lambda number, prompt: str(1 / 0),
}


class _Dealt(_Talk):
    """An episode of `OpensBy`. `dealt`: those of this process that were opened."""

    dealt = 0

    def __init__(self, opening: Callable[[int, str], str | None], text: Tokenizer) -> None:
        super().__init__(counts, text)
        self._opening = opening

    def open(self, prompt: Sequence[int]) -> Sequence[int] | None:
        _Dealt.dealt += 1
        opening = self._opening(_Dealt.dealt, self._text.decode(prompt))
        return None if opening is None else self._text.encode(opening)


class OpensBy(AnsweredBy):
    """A task that opens its episodes as its name says."""

    opened = True

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Dealt:
        return _Dealt(OPENINGS[self.name], text)


if __name__ == "__main__":
    for answer in ANSWERS:
        registry.register(AnsweredBy(answer))
    for opening in OPENINGS:
        registry.register(OpensBy(opening))
    for score in (*SCORES, *SIZES):
        registry.register(ScoredBy(score))
    environment_host.main()
