"""The files of the wheel; a source distribution and a git address give the same ones."""

import hashlib
import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.support.built_wheels import NO_INDEX, build
from tests.support.paths import PACKAGES, ROOT


def contents(wheel: Path) -> dict[str, str]:
    """Name -> hash of a wheel's files; of those that a compiler makes, and of the list of all, the name alone."""
    with zipfile.ZipFile(wheel) as opened:
        return {
            name: "" if name.endswith((".so", "/RECORD")) else hashlib.sha256(opened.read(name)).hexdigest()
            for name in opened.namelist()
        }


def built(source: str, target: Path, more: dict[str, str] | None = None) -> dict[str, str]:
    """Build a wheel; return its contents."""
    done = build(source, target, more)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    return contents(wheel)


def test_the_wheel_holds_one_package_and_its_own_metadata(wheel: Path) -> None:
    names = contents(wheel).keys()
    assert {name.partition("/")[0] for name in names} == {"echo2", "echo2-0.1.0.dist-info"}
    assert {name.split("/")[1] for name in names if name.startswith("echo2/")} == {
        *PACKAGES, "_libp2p", "_moved.py", "__init__.py",
    }  # fmt: skip


def test_the_wheel_holds_each_module_and_data_file_of_the_packages(wheel: Path) -> None:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    tracked = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    wanted = {f"echo2/{name}" for name in tracked if (ROOT / name).is_file()}
    assert wanted - contents(wheel).keys() == set()


def test_the_wheel_carries_the_licences_of_what_it_bundles(wheel: Path) -> None:
    names = [name for name in contents(wheel) if name.startswith("echo2/_libp2p/LICENSES/")]
    assert {name.split("/")[3].partition("-")[0] for name in names} == {"libp2p", "multiaddr", "noiseprotocol"}


def test_the_source_distribution_builds_the_same_wheel_without_a_network(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert built(str(folder), tmp_path / "wheels", NO_INDEX) == contents(wheel)


def test_a_git_address_builds_the_same_wheel(commit: Path, wheel: Path, tmp_path: Path) -> None:
    assert built(f"git+file://{commit}", tmp_path / "wheels") == contents(wheel)


def test_a_zip_archive_in_which_the_links_are_lost_is_refused_in_one_sentence(commit: Path, tmp_path: Path) -> None:
    archive = tmp_path / "echo2.zip"
    subprocess.run(["git", "archive", "--prefix=echo2/", "-o", str(archive), "HEAD"], cwd=commit, check=True)
    done = build(str(archive), tmp_path / "wheels")
    assert done.returncode != 0
    sentence = "echo2's links were lost on the way, as in a zip archive: install from git, a .tar.gz or a wheel"
    assert [line.strip() for line in done.stderr.splitlines() if "links were lost" in line] == [sentence]
    assert "Traceback" not in done.stderr
