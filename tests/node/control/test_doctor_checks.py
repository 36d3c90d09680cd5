"""The verdicts of `echo2-node doctor`: each row with its remedy, and the exit code."""

import pytest

from echo2.node.control import doctor_checks
from echo2.node.control.doctor_checks import Attempt, HostTrial
from echo2.p2p.discovery.messages import ReachableResponse
from echo2.runtime.exit_codes import Exit
from echo2.runtime.network_disk import Disk

ADDRESS = "/ip4/192.0.2.1/tcp/4310/p2p/c"
DEAD = Attempt(route="direct", address=ADDRESS, trouble="no answer within 10 s")
OVER_HTTPS = Attempt(route="https", address="/dns4/c.example/tcp/4311/https/p2p/c", seconds=0.2)
SEEN = ReachableResponse(observed="203.0.113.5", ports=[])
NOW = 1_700_000_000_000

FINDINGS = {
    "another distribution with our package": (
        doctor_checks.installation("pip", ["echo2-fork"]),
        "bad",
        Exit.CONFIG,
        "uninstall echo2-fork, and install",
    ),
    "one echo2": (doctor_checks.installation("pip", []), "good", 0, ""),
    "less disk than allowed": (doctor_checks.disk("/h", 20 * 10**9, 50.0), "poor", 0, "disk = 16"),
    "a home that cannot be written": (
        doctor_checks.unwritable("/h", "no room: free space there", Exit.TEMPORARY),
        "bad",
        Exit.TEMPORARY,
        "free space",
    ),
    "a home on a server's disk": (
        doctor_checks.file_system(Disk("nfs4", "server:/home")),
        "poor",
        0,
        "with --home",
    ),
    "a home on a disk of this machine": (doctor_checks.file_system(Disk("ext4", "/dev/sda")), "good", 0, ""),
    "a run of another build": (doctor_checks.other_form("go on with that build"), "bad", Exit.CONFIG, "that build"),
    "a proxy that takes connections": (doctor_checks.proxy("proxy.example port 8080", ""), "good", 0, ""),
    "a proxy that does not": (doctor_checks.proxy("proxy.example port 8080", "refused"), "poor", 0, "NO_PROXY"),
    "no disk": (doctor_checks.disk("/h", 10**9, 50.0), "bad", Exit.TEMPORARY, "free space"),
    "a GPU that was asked for and is not there": (doctor_checks.gpu("cuda", "", ""), "bad", Exit.NO_DEVICE, "driver"),
    "a GPU that the build cannot use": (
        doctor_checks.gpu("auto", "an AMD GPU", "an AMD GPU is present, but pip install that"),
        "poor",
        0,
        "pip install that",
    ),
    "no GPU where any device will do": (doctor_checks.gpu("auto", "", ""), "poor", 0, "optional: the CPU works"),
    "a port that is taken": (doctor_checks.port([], "taken"), "bad", Exit.CONFIG, "--listen /ip4/0.0.0.0/tcp/4001"),
    "a clock that is behind": (doctor_checks.clock(NOW + 60_000, NOW), "bad", Exit.TEMPORARY, "timedatectl"),
    "a clock that is ahead": (doctor_checks.clock(NOW - 3_600_000, NOW), "bad", Exit.TEMPORARY, "timedatectl"),
    "a clock that agrees": (doctor_checks.clock(NOW - 59_000, NOW), "good", 0, ""),
    "an open port": (
        doctor_checks.reachable(ReachableResponse(observed="203.0.113.5", ports=[7]), [7], None),
        "good",
        0,
        "",
    ),
    "a closed port, with a relay": (doctor_checks.reachable(SEEN, [4001], None), "poor", 0, "forward TCP port 4001"),
    "a closed port, and no relay": (doctor_checks.reachable(SEEN, [], "full"), "poor", 0, "tcp/4001"),
    "nobody to ask": (doctor_checks.reachable(None, [], None), "good", 0, ""),
    "no invite": (doctor_checks.no_invite(), "poor", 0, "echo2-node doctor INVITE"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_check_has_its_verdict_its_exit_code_and_its_remedy(name):
    row, verdict, code, remedy = FINDINGS[name]
    assert (row.verdict, row.exit) == (verdict, code)
    assert remedy in row.remedy
    assert bool(row.remedy) == (verdict != "good")


def test_one_working_route_is_enough():
    rows = {row.check: row for row in doctor_checks.routes([DEAD, OVER_HTTPS])}
    assert rows["direct"].verdict == "poor"
    assert "192.0.2.1 port 4310" in rows["direct"].remedy
    assert rows["https"].verdict == rows["coordinator"].verdict == "good"
    assert "names no such address" in rows["relay"].actual
    assert doctor_checks.exit_code(list(rows.values())) == Exit.OK


NAMED = "/dns4/c.example/tcp/4311/https/p2p/c"
UNKNOWN = HostTrial(host="c.example", port=4311, name_fault="Name or service not known")
SHUT = HostTrial(host="c.example", port=4311, known="192.0.2.7", tcp_fault="Connection refused")
OPEN = HostTrial(host="c.example", port=4311, known="192.0.2.7")


@pytest.mark.parametrize(
    ("trial", "verdicts", "remedy"),
    [
        (UNKNOWN, ("poor", "good", "poor"), "name servers do not know the name"),
        (SHUT, ("good", "poor", "poor"), "allow outgoing TCP to c.example port 4311 in the firewall"),
        (OPEN, ("good", "good", "poor"), "takes connections, and is no coordinator of this run"),
    ],
    ids=["name", "tcp", "handshake"],
)
def test_name_tcp_and_handshake_are_three_rows_and_each_has_a_fix_of_its_own(
    trial: HostTrial, verdicts: tuple[str, str, str], remedy: str
) -> None:
    attempt = Attempt(route="https", address=NAMED, trouble="no answer")
    rows = {row.check: row for row in doctor_checks.routes([attempt], [trial])}
    rows |= {row.check: row for row in (doctor_checks.names([trial]), doctor_checks.tcp([trial]))}
    assert tuple(rows[name].verdict for name in ("names", "tcp", "https")) == verdicts
    assert remedy in rows["https"].remedy
    assert ("firewall" in "".join(row.remedy for row in rows.values())) == (trial is not UNKNOWN)


def test_without_a_working_route_the_doctor_ends_with_its_own_code():
    assert doctor_checks.exit_code(doctor_checks.routes([DEAD])) == Exit.UNREACHABLE
    assert (
        doctor_checks.exit_code([doctor_checks.installation("pip", ["echo2-fork"]), *doctor_checks.routes([DEAD])])
        == Exit.CONFIG
    ), "the first bad one"


def test_the_table_names_each_remedy_below_the_rows():
    lines = doctor_checks.table(doctor_checks.routes([DEAD]))
    assert lines[0].startswith("poor direct")
    assert [text_line for text_line in lines if text_line.startswith("-> direct: allow outgoing TCP")]


def test_engines_whose_memory_others_can_read_are_named() -> None:
    assert doctor_checks.engine_memory("", "linux").actual == "closed"
    assert doctor_checks.engine_memory("abacus", "linux").actual.startswith("open: abacus, whose processes may share")
    assert doctor_checks.engine_memory("", "darwin").actual == "open: darwin has nothing that closes it"


def test_an_occasion_that_is_asked_for_and_cannot_be_seen_is_poor_and_names_what_to_do() -> None:
    row = doctor_checks.occasion("gpu", "NVML: no such library", seen=False, wanted=True)
    assert (row.verdict, row.exit) == ("poor", 0)
    assert row.actual == "cannot be seen here: NVML: no such library"
    assert "leave gpu out of yield_when" in row.remedy
    assert doctor_checks.occasion("gpu", "NVML: no such library", seen=False, wanted=False).verdict == "good"
    assert doctor_checks.occasion("battery", "there is no battery", seen=False, wanted=True).verdict == "good"
    seen = doctor_checks.occasion("keyboard", "loginctl", seen=True, wanted=True)
    assert (seen.verdict, seen.actual) == ("good", "seen: loginctl")
