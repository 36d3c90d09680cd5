import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest

from echo2.runtime.child import Child, ChildDied, ChildError, Confined
from echo2.runtime.errors import DiskFull
from echo2.runtime.pipe_frames import MAX_FRAME
from tests.support.paths import ROOT

ARGV = [sys.executable, str(ROOT / "tests/support/echo_child.py")]
ENV = {"PYTHONPATH": str(ROOT)}


class Text(msgspec.Struct):
    text: str


@contextlib.asynccontextmanager
async def running(argv: list[str] = ARGV, env: dict[str, str] | None = None) -> AsyncIterator[Child]:
    child = Child(argv, name="echo", env={**ENV, **(env or {})})
    await child.start()
    try:
        yield child
    finally:
        await child.stop(grace=2)


async def locked(child: Child, path: Path) -> "asyncio.Task[None]":
    """Start a call that computes for ever and holds a lock on `path`."""
    told = asyncio.Event()
    child.events(lambda method, body: told.set())
    call = asyncio.create_task(child.call("compute", Text(str(path)), type(None)))
    await told.wait()
    return call


def gone_within(path: Path, seconds: float) -> bool:
    """Return True as soon as no process holds the lock on `path`, False after `seconds`."""
    deadline = time.monotonic() + seconds
    with path.open("w") as file:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.01)
    return False


async def test_a_call_is_answered_and_prints_never_reach_the_pipe() -> None:
    async with running() as child:
        assert await child.call("echo", Text("hello"), Text) == Text("hello")


async def test_overlapping_calls_each_get_their_own_answer() -> None:
    async with running() as child:
        answers = await asyncio.gather(*(child.call("echo", Text(str(i)), Text) for i in range(50)))
        assert [answer.text for answer in answers] == [str(i) for i in range(50)]


async def test_a_large_message_passes_both_ways() -> None:
    async with running() as child:
        text = "x" * (8 * 2**20)
        assert (await child.call("echo", Text(text), Text)).text == text


async def test_a_message_above_the_bound_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as child:
        monkeypatch.setattr("echo2.runtime.pipe_frames.MAX_FRAME", 1000)
        with pytest.raises(ValueError, match="above the limit"):
            await child.call("echo", Text("x" * 1000), Text)
        monkeypatch.setattr("echo2.runtime.pipe_frames.MAX_FRAME", MAX_FRAME)
        assert (await child.call("echo", Text("still there"), Text)).text == "still there"


@pytest.mark.parametrize(
    ("method", "body", "kind", "message"),
    [
        ("fail", Text("no such thing"), "LookupError", "no such thing"),
        ("unknown", None, "KeyError", "unknown"),
        ("echo", None, "ValidationError", "Expected"),
    ],
    ids=["a handler that raises", "a method that does not exist", "a body of the wrong type"],
)
async def test_an_error_in_the_child_crosses_typed(method: str, body: Text | None, kind: str, message: str) -> None:
    async with running() as child:
        with pytest.raises(ChildError) as raised:
            await child.call(method, body, Text)
        assert raised.value.kind == kind
        assert message in raised.value.message
        assert (await child.call("echo", Text("alive"), Text)).text == "alive"


async def test_a_full_disk_crosses_as_what_it_is_and_leaves_the_child_usable() -> None:
    async with running() as child:
        with pytest.raises(DiskFull, match="no room to write here"):
            await child.call("fill", Text("no room to write here"), Text)
        assert (await child.call("echo", Text("alive"), Text)).text == "alive"


async def test_notifications_arrive_in_order_and_before_the_answer() -> None:
    async with running() as child:
        words: list[str] = []
        child.events(lambda method, body: words.append(msgspec.msgpack.decode(body, type=Text).text))
        await child.call("tell", Text("one two three"), Text)
        assert words == ["one", "two", "three"]


async def test_a_confined_child_that_sends_what_answers_no_call_is_killed(tmp_path: Path) -> None:
    child = Child(ARGV, name="echo", env=ENV, confined=Confined(tmp_path, 1 << 20, 1 << 20))
    await child.start()
    with pytest.raises(ChildDied, match="an answer to no call"):
        await child.call("tell", Text("a b c"), Text)


async def test_a_confined_child_may_answer_a_call_whose_caller_has_gone(tmp_path: Path) -> None:
    child = Child(ARGV, name="echo", env=ENV, confined=Confined(tmp_path, 1 << 20, 1 << 20))
    await child.start()
    file = tmp_path / "enough"
    call = asyncio.create_task(child.call("wait", Text(str(file)), Text))
    await asyncio.sleep(0)  # so that it is sent
    call.cancel()
    file.touch()
    assert (await child.call("echo", Text("alive"), Text)).text == "alive"
    await child.stop()


LATE = """
import os, sys
from echo2.runtime.pipe_frames import LENGTH, decode_frame, encoded_frame
def frame():
    return decode_frame(os.read(0, LENGTH.unpack(os.read(0, LENGTH.size))[0]))
call, cancel = frame(), frame()
assert (cancel.kind, cancel.id) == ("cancel", call.id)
for _ in range(int(sys.argv[1])):
    os.write(1, encoded_frame(call.id, "answer", "answer", None))
os.write(1, encoded_frame(frame().id, "answer", "answer", None))
os.read(0, 1)
"""
"""A child that answers its first call, so many times, after it was taken back, and then the next one."""


@pytest.mark.parametrize("answers", [0, 1, 2])
async def test_a_confined_child_may_answer_a_call_that_was_taken_back_once(tmp_path: Path, answers: int) -> None:
    argv = [sys.executable, "-c", LATE, str(answers)]
    child = Child(argv, name="late", env=ENV, confined=Confined(tmp_path, 1 << 20, 1 << 20))
    await child.start()
    with pytest.raises(TimeoutError):
        await child.call("notices", None, type(None), timeout=0, withdraw=True)
    if answers < 2:
        await child.call("score", None, type(None))
        assert await child.stop() == 0
    else:
        with pytest.raises(ChildDied, match="an answer to no call"):
            await child.call("score", None, type(None))


async def test_a_call_that_times_out_leaves_the_child_usable(tmp_path: Path) -> None:
    file = tmp_path / "enough"
    async with running() as child:
        with pytest.raises(TimeoutError):
            await child.call("wait", Text(str(file)), Text, timeout=0.05)
        file.touch()
        assert (await child.call("echo", Text("next"), Text)).text == "next"


async def test_a_killed_child_fails_every_call_under_way(tmp_path: Path) -> None:
    async with running() as child:
        first = await locked(child, tmp_path / "lock")
        second = asyncio.create_task(child.call("echo", Text("never"), Text))
        os.kill(child.pid, signal.SIGKILL)
        for call in (first, second):
            with pytest.raises(ChildDied) as died:
                await call
            assert died.value.returncode == -signal.SIGKILL
        assert await child.exited == -signal.SIGKILL
        with pytest.raises(ChildDied):
            await child.call("echo", Text("too late"), Text)


async def test_a_child_killed_before_it_serves_fails_its_first_call() -> None:
    child = Child(ARGV, name="echo", env=ENV)
    await child.start()
    child.kill()
    with pytest.raises(ChildDied):
        await child.call("echo", Text("hello"), Text)


async def test_the_last_output_of_the_child_stands_in_the_error() -> None:
    async with running() as child:
        with pytest.raises(ChildDied, match=r"echo ended with 7: out of cheese") as died:
            await child.call("grumble", Text("first line\nout of cheese"), type(None))
        assert "first line" in died.value.stderr


async def test_a_grandchild_that_outlives_the_child_leaves_no_descriptor_open_here(tmp_path: Path) -> None:
    started = tmp_path / "grandchild"
    code = (
        "import subprocess, sys; one = subprocess.Popen(['sleep', '60'], stdin=-3, stdout=-3, start_new_session=True);"
        "open(sys.argv[1], 'w').write(str(one.pid))"
    )
    before = psutil.Process().num_fds()
    child = Child([sys.executable, "-c", code, str(started)], name="parent", env=ENV)
    await child.start()
    try:
        assert await child.exited == 0
        await asyncio.sleep(0)
        assert psutil.Process().num_fds() == before
    finally:
        psutil.Process(int(started.read_text())).kill()


async def test_ctrl_c_does_not_reach_the_child() -> None:
    async with running() as child:
        await child.call("echo", Text("ready"), Text)
        os.kill(child.pid, signal.SIGINT)
        assert (await child.call("echo", Text("unmoved"), Text)).text == "unmoved"
        assert os.getsid(child.pid) == child.pid


async def test_rubbish_from_the_child_kills_it() -> None:
    async with running() as child:
        with pytest.raises(ChildDied):
            await child.call("rubbish", None, type(None))
        assert await child.exited == -signal.SIGKILL


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc", b"\x00\x00\x00\x01\xc0"],
    ids=["a length above the bound", "bytes that are no msgpack", "msgpack that is no frame"],
)
async def test_rubbish_from_the_parent_ends_the_child_with_a_reason(rubbish: bytes) -> None:
    done = await asyncio.to_thread(
        subprocess.run, ARGV, input=rubbish, capture_output=True, env={**os.environ, **ENV}, timeout=60, check=False
    )
    assert done.returncode == 1
    assert b"invalid frame" in done.stderr


async def test_stop_ends_a_child_in_the_middle_of_a_computation(tmp_path: Path) -> None:
    child = Child(ARGV, name="echo", env=ENV)
    await child.start()
    call = await locked(child, tmp_path / "lock")
    assert await child.stop(grace=60) == 0
    with pytest.raises(ChildDied):
        await call


async def test_stop_kills_a_child_that_does_not_listen() -> None:
    child = Child([sys.executable, "-c", "import time; time.sleep(60)"], name="deaf")
    await child.start()
    assert await child.stop(grace=0.2) == -signal.SIGKILL


async def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    program = textwrap.dedent(
        f"""
        import asyncio, msgspec
        from echo2.runtime.child import Child
        class Text(msgspec.Struct):
            text: str
        async def main():
            child = Child({ARGV!r}, name="echo", env={ENV!r})
            await child.start()
            child.events(lambda method, body: print("locked", flush=True))
            await child.call("compute", Text({str(lock)!r}), type(None))
        asyncio.run(main())
        """
    )
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, **ENV}, text=True
    )
    assert await asyncio.to_thread(parent.stdout.readline) == "locked\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert await asyncio.to_thread(gone_within, lock, 2.0)


def test_a_loop_that_ends_without_stop_takes_the_child_with_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    async def forgetful() -> None:
        child = Child(ARGV, name="echo", env=ENV)
        await child.start()
        await locked(child, lock)

    asyncio.run(forgetful())
    assert gone_within(lock, 60.0)


async def test_a_child_computes_on_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    async with running() as child:
        assert (await child.call("environment", Text("OMP_NUM_THREADS"), Text)).text == "1"
        assert (await child.call("environment", Text("OMP_WAIT_POLICY"), Text)).text == "passive"
    async with running(env={"OMP_NUM_THREADS": "4"}) as child:
        assert (await child.call("environment", Text("OMP_NUM_THREADS"), Text)).text == "4"


async def test_deferred_calls_are_worked_on_together_and_answered_as_they_end() -> None:
    async with running() as child:
        long, short = (asyncio.create_task(child.call("count", Text(text), Text)) for text in ("60", "20"))
        assert await child.call("echo", Text("between"), Text) == Text("between")
        assert int((await short).text) < int((await long).text)
        with pytest.raises(ChildError, match="below zero"):
            await child.call("count", Text("-1"), Text)
        with pytest.raises(ChildError, match="invalid literal"):
            await child.call("count", Text("word"), Text)


async def test_a_barrier_begins_after_the_calls_before_it_and_before_those_after_it() -> None:
    async with running() as child:
        first = asyncio.create_task(child.call("count", Text("30"), Text))
        await asyncio.sleep(0)
        reset = asyncio.create_task(child.call("reset", None, Text))
        await asyncio.sleep(0)
        second = asyncio.create_task(child.call("count", Text("5"), Text))
        assert (await first, await reset, await second) == (Text("30"), Text("0"), Text("5"))


async def test_a_caller_that_is_cancelled_takes_its_call_back_if_it_may() -> None:
    async with running() as child:
        endless = asyncio.create_task(child.call("count", Text("1000000"), Text, withdraw=True))
        await asyncio.sleep(0)  # so that it is sent before the next call, which the child answers once it has begun it
        assert await child.call("echo", Text("begun"), Text) == Text("begun")
        endless.cancel()
        assert await child.call("reset", None, Text) == Text("1")  # which waits for all that was not taken back
        with pytest.raises(TimeoutError):
            await child.call("count", Text("1000000"), Text, timeout=0.01, withdraw=True)
        await child.call("reset", None, Text)


async def test_a_child_that_dies_fails_all_deferred_calls() -> None:
    async with running() as child:
        calls = [asyncio.create_task(child.call("count", Text("1000000"), Text)) for _ in range(3)]
        assert await child.call("echo", Text("begun"), Text) == Text("begun")
        child.kill()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, ChildDied) for end in ends)
