"""Commands of `echo2-coord` end without a traceback when the reader of their output is gone, as with `| head`."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.weights.store import Store
from tests.support import pictures
from tests.support.children import into_a_closed_pipe
from tests.support.tiny_learner import make_model

COMMAND = [sys.executable, "-m", "echo2.coordinator.cli"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """Return a run folder made now, by the command."""
    place = tmp_path_factory.mktemp("pipes")
    model = str(make_model(place / "model"))
    subprocess.run(
        [*COMMAND, "init", str(place / "run"), "--model", model, "--task", "reverse", "--yes"],
        check=True, capture_output=True, cwd=repository, timeout=60,
    )  # fmt: skip
    Store(place / "run/store").close()
    return place


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a page that shows a finished run."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(pictures.FINISHED))

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "words",
    ["--help", "version", "invite --home RUN", "keys show --home RUN", "policy ls --home RUN",
     "policy verify --home RUN", "status --home RUN --url URL", "status --home RUN --url URL --json",
     "init NEW --model MODEL --task reverse --yes", "demo"],
)  # fmt: skip
@pytest.mark.slow
def test_a_command_whose_reader_has_closed_ends_in_silence(
    words: str, place: Path, url: str, tmp_path: Path, repository: Path
) -> None:
    here = {"RUN": str(place / "run"), "NEW": str(tmp_path / "new"), "MODEL": str(place / "model"), "URL": url}
    argv = [*COMMAND, *(here.get(word, word) for word in words.split())]
    code, error = into_a_closed_pipe(argv, cwd=repository, env={**os.environ, "TMPDIR": str(tmp_path)})
    said = [
        text_line for text_line in error.splitlines() if not text_line.startswith("fingerprint: ")
    ]  # meant for standard error
    assert (code, said) == (141, [])
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "new"])


@pytest.mark.slow
def test_an_error_without_a_reader_keeps_its_exit_code(tmp_path: Path, repository: Path) -> None:
    argv = [*COMMAND, "status", "--home", str(tmp_path)]
    assert into_a_closed_pipe(argv, errors_too=True, cwd=repository)[0] == 78
