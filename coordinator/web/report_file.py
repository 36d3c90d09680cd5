"""Write the report on a run: one HTML file, from the running coordinator's state or the last one that it left."""

from pathlib import Path

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics import setting_changes, status
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.run import setup
from echo2.coordinator.settings import config_edits
from echo2.coordinator.web import page
from echo2.p2p.errors import Unreachable
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing
from echo2.runtime.units import minute


def write(home: Path, file: Path) -> str:
    """Write the report on the run in a folder; return where it is and from when. Raises `LocalFault`, `Untrusted`."""
    place = RunFolder(home)
    settings = [*config_edits.list_differences(place.config), *setting_changes.lines_of(place.database)]
    state, source = state_of(place)
    if file.exists() or file.is_symlink():
        raise LocalFault(f"{file} exists: name another file")
    try:
        with writing(file) as opened:
            opened.write(page.report(state, settings).encode())
    except OSError as error:
        raise LocalFault(f"cannot write {file} ({error.strerror}): name another file") from error
    return f"{file}: {source} ({minute(state.now)}), step {state.step}, version {state.version}"


def state_of(place: RunFolder) -> tuple[RunState, str]:
    """Return the state to report, and its source in words."""
    _, _, _, spec = setup.read_documents(place)
    try:
        return status.decode(status.fetch_of(place, None, spec.run)), "the state of now"
    except Unreachable:
        pass
    try:
        return status.decode(place.last_state.read_bytes()), "the state when a coordinator last ended in order"
    except OSError as error:
        raise LocalFault(
            f"no coordinator runs in {place.path}, and none has ended in order there: start it with "
            f"`echo2-coord run --home {place.path}`"
        ) from error
