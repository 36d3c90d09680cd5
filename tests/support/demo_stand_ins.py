"""Stand-ins for the demo's processes. `demo_stand_ins.py coordinator STORY HOME` runs a coordinator, and
`demo_stand_ins.py demo STORY` the demo with stand-ins. That of a node is in node_stand_in.py, which starts quickly.

The coordinator's state advances by four steps per request, so a story needs no clock.
"""

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from echo2.coordinator.metrics.views import FaultView, RunState  # noqa: E402 (the path above comes first)
from echo2.runtime.errors import LocalFault  # noqa: E402
from tests.support import pictures  # noqa: E402

if TYPE_CHECKING:
    from echo2.coordinator.demo.demo import Programs
    from echo2.coordinator.demo.demo_settings import DemoSettings

STEPS = 40


def state_of(story: str, step: int) -> RunState:
    steps_done = 12 if story in ("endless", "crash") else min(step, STEPS)
    finished = steps_done == STEPS
    values = [0] if steps_done < 8 else list(range(0, steps_done + 1, 8))
    evaluations = pictures.evaluations([0] * len(values) if story == "flat" else values)
    return msgspec.structs.replace(
        pictures.FINISHED if finished else pictures.BUSY,
        step=steps_done,
        phase="finished" if finished else "learning",
        evaluations=evaluations,
        received=548 if story == "lost" else 547,
        undecided=0 if finished else 3,
        faults=[FaultView(at=0, what="scorer ended with -9: no output")] if story == "fault" else [],
    )


def coordinator(story: str, home: Path) -> None:
    asked = 0

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal asked
            asked += 1
            # If the run finished before that node ignores SIGINT, the node would end.
            waits = story == "deaf" and not (home.parent / "brave-otter").exists()
            state = state_of(story, min(4 * asked, STEPS - 4) if waits else 4 * asked)
            if state.phase == "finished":
                (home.parent / "finished").touch()  # read by nodes that exit by themselves
            body = msgspec.json.encode(state)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = HTTPServer(("127.0.0.1", 0), Answer)
    (home / "page.tmp").write_text(f"http://127.0.0.1:{server.server_port}\n")
    (home / "page.tmp").rename(home / "page")
    server.serve_forever()


def programs(story: str) -> "Programs":
    from echo2.coordinator.demo.demo import Programs

    me = [sys.executable, str(Path(__file__).resolve())]

    def make(home: Path, settings: "DemoSettings", seed: int) -> None:
        home.mkdir()
        while story == "long making":
            time.sleep(0.05)  # a signal that comes as a sleep begins is seen when it ends
        if story == "no making":
            raise LocalFault("the model could not be made")

    return Programs(
        make=make,
        coordinator=lambda home: [*me, "coordinator", story, str(home)],
        node=lambda invite, home, name, route: [sys.executable, str(HERE / "node_stand_in.py"), str(home), story],
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["coordinator", story, home]:
            coordinator(story, Path(home))
        case ["demo", story]:
            from echo2.coordinator.demo import demo
            from echo2.coordinator.demo.demo_settings import DemoOptions

            demo.API_POLL_SECONDS = 0.1  # type: ignore[misc]
            sys.exit(demo.play(DemoOptions(), programs(story)).code)
