"""What this machine says of its owner, by stand-ins of the programs that say it."""

import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from echo2.node.owner import owner_probes
from echo2.node.owner.owner_probes import PROBE_ERRORS, RunningPrograms, probe_of, probes_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="the sources are Linux's")


def stand_in(folder: Path, name: str, answer: str, code: int = 0) -> Path:
    """Make a program that answers with the content of a file, which is returned."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(answer)
    (folder / name).write_text(
        f'#!/bin/sh\necho "$@" > "{folder}/{name}.asked"\n/bin/cat "{folder}/{name}.txt"\nexit {code}\n'
    )
    (folder / name).chmod(0o755)
    return folder / f"{name}.txt"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[str]:
    """Run a program that is not ours, with a name longer than Linux keeps; yield the name."""
    name = "a-game-with-a-long-name"
    (tmp_path / name).symlink_to("/bin/sleep")
    starter = subprocess.run(
        ["/bin/sh", "-c", f'"{tmp_path / name}" 60 >/dev/null 2>&1 & echo $!'], stdout=subprocess.PIPE, check=True
    )
    process = psutil.Process(int(starter.stdout))
    try:
        yield name
    finally:
        process.kill()


@linux
def test_a_program_of_the_owner_is_seen_by_its_name_in_any_case(foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_probes, "is_ours", lambda process: False)
    assert RunningPrograms(["steam-that-nobody-has"]).look() == ""
    assert RunningPrograms([foreign.upper()]).look() == f"{foreign.upper()} is running (setting yield_to)"
    assert RunningPrograms([foreign[:15] + "-of-another"]).look() == "", "only its first 15 letters are the same"


@linux
def test_a_program_that_begins_or_ends_is_seen_at_the_next_look() -> None:
    looks = RunningPrograms(["sleep"])
    looks.look()
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeping:
        looks.look()
        assert looks._known[str(sleeping.pid)][0] in ("sleep", "python", "python3")
        sleeping.kill()
    looks.look()
    assert str(sleeping.pid) not in looks._known


@linux
def test_what_a_node_started_is_not_the_owners() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeping:
        try:
            assert owner_probes.is_ours(psutil.Process(sleeping.pid))
            assert not owner_probes.is_ours(psutil.Process(1))
        finally:
            sleeping.kill()


@linux
def test_a_long_list_of_processes_is_read_once_and_not_at_each_look(tmp_path: Path) -> None:
    for number in range(1, 51):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text("bash\n")
    looks = RunningPrograms(["steam"], tmp_path)
    for _ in range(6):
        looks.look()
    (tmp_path / "7" / "comm").write_text("steam\n")
    assert (7, "steam") not in looks._names()
    assert any((7, "steam") in looks._names() for _ in range(owner_probes.ALL_ANEW)), "a shell that became the program"


@linux
def test_keyboard_and_mouse_are_seen_by_x_else_by_logind(programs: Path) -> None:
    assert probe_of("keyboard").look is None
    assert probe_of("keyboard").source == "xprintidle is not installed; loginctl is not installed"
    hint = stand_in(programs, "loginctl", "IdleHint=yes\n")
    probe = probe_of("keyboard")
    assert probe.source == "loginctl"
    assert probe.look is not None
    assert probe.look() == ""
    hint.write_text("IdleHint=no\n")
    assert probe.look() == "you use this machine, as its session says"
    idle = stand_in(programs, "xprintidle", "5000\n")
    probe = probe_of("keyboard")
    assert probe.source == "xprintidle"
    assert probe.look is not None
    assert probe.look() == "you use keyboard or mouse"
    idle.write_text("61000\n")
    assert probe.look() == ""
    idle.write_text("nonsense")
    with pytest.raises(PROBE_ERRORS):
        probe.look()


@linux
def test_a_program_that_has_the_whole_screen_is_seen_by_x(programs: Path) -> None:
    assert probe_of("fullscreen").look is None
    assert probe_of("fullscreen").source == "xprop is not installed"
    (programs / "xprop").write_text(f"""#!/bin/sh
case "$1 $2" in
"-root _NET_ACTIVE_WINDOW") /bin/cat "{programs}/front" ;;
"-id 0x3a00007") /bin/cat "{programs}/state" ;;
*) exit 1 ;;
esac
""")
    (programs / "xprop").chmod(0o755)
    (programs / "front").write_text("_NET_ACTIVE_WINDOW(WINDOW): window id # 0x3a00007\n")
    (programs / "state").write_text("_NET_WM_STATE(ATOM) = _NET_WM_STATE_MAXIMIZED_VERT\n")
    look = probe_of("fullscreen").look
    assert look is not None
    assert look() == ""
    (programs / "state").write_text("_NET_WM_STATE(ATOM) = _NET_WM_STATE_FULLSCREEN, _NET_WM_STATE_FOCUSED\n")
    assert look() == "a program has the whole screen"
    (programs / "front").write_text("_NET_ACTIVE_WINDOW(WINDOW): window id # 0x0\n")
    assert look() == "", "no window is in front"
    (programs / "front").write_text("_NET_ACTIVE_WINDOW(WINDOW): window id # 0x9\n")
    with pytest.raises(PROBE_ERRORS):
        look()


@linux
def test_a_source_that_fails_says_why_it_cannot_be_seen(programs: Path) -> None:
    stand_in(programs, "loginctl", "", 1)
    (programs / "loginctl").write_text("#!/bin/sh\necho 'no bus here' >&2\necho more >&2\nexit 1\n")
    probe = probe_of("keyboard")
    assert probe.look is None
    assert probe.source == "xprintidle is not installed; loginctl says: no bus here"


def test_the_idle_time_of_a_mac_is_read(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    idle = stand_in(programs, "ioreg", '  | "HIDIdleTime" = 2000000000\n')
    probe = probe_of("keyboard")
    assert probe.look is not None
    assert probe.look() == "you use keyboard or mouse"
    idle.write_text('  | "HIDIdleTime" = 90000000000\n')
    assert probe.look() == ""


@linux
@pytest.mark.parametrize(
    ("answer", "seen"),
    [("yes", True), ("yes (guessed)", True), ("no", False), ("no (guessed)", False), ("unknown", False)],
)
def test_a_metered_line_is_seen_by_networkmanager(
    answer: str, seen: bool, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_probes, "_default_device", lambda: "wlan0")
    stand_in(programs, "nmcli", f"GENERAL.METERED:{answer}\n")
    probe = probe_of("metered")
    assert probe.look is not None
    assert probe.look() == ("the line wlan0 is metered" if seen else "")
    assert (programs / "nmcli.asked").read_text().strip() == "-t -f GENERAL.METERED device show wlan0"


def test_the_device_of_the_default_route_is_found(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n"
        "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\nwwan0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\n"
    )
    assert owner_probes._default_device(tmp_path) == "wwan0"
    assert owner_probes._default_device(tmp_path / "none") == ""


def test_a_machine_with_ipv6_alone_has_a_default_route_too(tmp_path: Path) -> None:
    nowhere, near, gateway = "0" * 32, f"fd{'0' * 30}", f"fd{'0' * 29}1"
    end = "00000400 00000003 00000000 00000003"
    (tmp_path / "route").write_text("Iface\tDestination\tGateway\tFlags\n")
    (tmp_path / "ipv6_route").write_text(
        f"{near} 40 {nowhere} 00 {nowhere} {end} eth1\n{nowhere} 00 {nowhere} 00 {nowhere} {end} lo\n"
        f"{nowhere} 00 {nowhere} 00 {gateway} {end} wwan0\n"
    )
    assert owner_probes._default_device(tmp_path) == "wwan0"


Battery = namedtuple("Battery", ["percent", "secsleft", "power_plugged"])


@pytest.mark.parametrize(
    ("plugged", "sentence"), [(False, "this machine runs on its battery (81 %)"), (True, ""), (None, "")]
)
def test_a_battery_is_seen_where_there_is_one(
    plugged: bool | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert (probe_of("battery").look, probe_of("battery").source) == (None, "there is no battery")
    monkeypatch.setattr(psutil, "sensors_battery", lambda: Battery(80.6, 100, plugged), raising=False)
    look = probe_of("battery").look
    assert look is not None
    assert look() == sentence


def test_a_system_without_a_list_of_batteries_has_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil lists /sys/class/power_supply, which a container or a small kernel may lack: `join` and `doctor` broke."""

    def refuse() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/sys/class/power_supply")

    monkeypatch.setattr(psutil, "sensors_battery", refuse, raising=False)
    probe = probe_of("battery")
    assert probe.look is None
    assert "/sys/class/power_supply" in probe.source


def test_only_what_is_switched_on_is_asked(programs: Path) -> None:
    assert probes_of((), ()) == []
    assert [one.rule for one in probes_of(("steam",), ("battery",))] == ["program", "battery"]
