"""Name where this installation of echo2 came from, and the command that repeats it with an extra or a newer build.

Rules
1. The installer is recognised by what it leaves: `uv-receipt.toml` or `pipx_metadata.json` in the environment, the
   variable ECHO2_CONTAINER in an image, else the distribution's file INSTALLER.
2. The source is the distribution's `direct_url.json` (PEP 610): a wheel or sdist, a folder, a git address. Without one
   it came from an index.
3. Until echo2 is published nothing fetches its bare name from an index: a stranger could have registered it. The
   command then leaves a place for a wheel, a folder or a git address; so does the update of a single file.
4. uv and pipx make an environment anew, so their commands repeat the extras and the build of PyTorch that the
   environment has; pip adds.
5. An extra is added from the installed commit of a git address; an update takes its branch or tag.
"""

import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urlsplit

from echo2.runtime.declared_requirements import version_of
from echo2.runtime.errors import LocalFault

NAME: Final = "echo2"
IS_PUBLISHED: Final = False
"""Whether an index has echo2 under its name. RELEASING.md says when this changes."""
IN_A_CLONE: Final = "uv tool install .    # in a clone of echo2"
NO_SOURCE: Final = "WHEEL_OR_FOLDER"
"""Place for a source in a command, where none is known."""
NEWER_FILE: Final = "NEWER_WHEEL"
"""Place for a file that is newer than the one that was installed."""
NEWER_ARCHIVE: Final = "NEWER_ARCHIVE"
"""The same after a source archive."""
CONTAINER: Final = "ECHO2_CONTAINER"
"""Variable that our images set to the name of the image."""
TORCH_BUILDS: Final = "https://download.pytorch.org/whl/"

Installer = Literal["uv tool", "uv pip", "pipx", "pip", "pip --user", "container"]
Kind = Literal["file", "folder", "checkout", "git", "address", "index", "none"]


class RunsUninstalled(LocalFault):
    """The program runs from a folder that no installer knows."""


@dataclass(frozen=True)
class InstallSource:
    """Where a distribution came from. `place`: path of a file or folder, else an address. `commit`, `revision`: those
    of a git address. `within`: its subfolder. `there`: whether a path still exists."""

    kind: Kind
    place: str = ""
    commit: str = ""
    revision: str = ""
    within: str = ""
    there: bool = True

    def describe(self) -> str:
        gone = "" if self.there else ", which is not there any more"
        words = {
            "file": f"the file {self.place}",
            "folder": f"the folder {self.place}",
            "checkout": f"the checkout {self.place}, which it uses in place",
            "git": f"{self.place} at {self.revision or 'its default branch'}, commit {self.commit[:12]}",
            "address": self.place,
            "index": "a package index",
            "none": "an unknown source",
        }
        return words[self.kind] + gone

    def is_clone(self) -> bool:
        """Tell whether git can bring newer sources to the place."""
        return self.kind == "checkout" or (self.kind == "folder" and os.path.exists(os.path.join(self.place, ".git")))

    def requirement(self, extras: tuple[str, ...], *, newest: bool) -> str:
        """Return what an installer is to install, unquoted. `newest`: a newer build than the one that is installed."""
        chosen = f"[{','.join(extras)}]" if extras else ""
        if newest and self.kind in ("file", "address"):
            return (NEWER_ARCHIVE if self.place.endswith(".tar.gz") else NEWER_FILE) + chosen
        if self.kind in ("file", "folder", "checkout"):
            return (self.place if self.there else os.path.basename(self.place)) + chosen
        if self.kind == "git":
            revision = self.revision if newest else self.commit
            within = f"#subdirectory={quote(self.within)}" if self.within else ""
            # Old releases of pip take `git+file:` for a path, unless a host is named.
            place = self.place.replace("file:///", "file://localhost/")
            return f"{NAME}{chosen} @ git+{place}{'@' * bool(revision)}{revision}{within}"
        if self.kind == "address":
            return f"{NAME}{chosen} @ {self.place}"
        return f"{NAME if IS_PUBLISHED else NO_SOURCE}{chosen}"

    def public_command(self) -> str:
        """Return the command by which somebody else installs this build: from its public address, else from a clone."""
        if self.kind in ("git", "address") and re.fullmatch(r"https://[^@?\s]+", self.place):  # without a secret
            return f"uv tool install {shlex.quote(self.requirement((), newest=False))}"
        return f"uv tool install {NAME}" if self.kind == "index" and IS_PUBLISHED else IN_A_CLONE


@dataclass(frozen=True)
class Installation:
    """One installed echo2. `python`: path of its interpreter. `extras`: those that uv or pipx recorded. `backend`: what
    pipx installs by. `image`: name of the container image. `by_make`: whether `make setup` made the environment.
    `torch`: installed build of PyTorch, as its index names it; empty: none, or the default."""

    installer: Installer
    source: InstallSource
    python: str
    extras: tuple[str, ...] = ()
    backend: str = ""
    image: str = ""
    by_make: bool = False
    torch: str = ""

    def install_command(self, extra: str = "", torch: str = "") -> str:
        """Return the shell command that installs this build again, with an extra beside those that it has.

        `torch`: build of PyTorch that fits the machine, as its index names it ("cpu", "cu130"); empty: the default."""
        return self._command(extra, torch, newest=False)

    def update_command(self) -> str:
        """Return the shell command that brings a newer build from the same source."""
        if self.installer == "container" or not self.source.is_clone():
            return self._command("", "", newest=True)
        folder = shlex.quote(self.source.place)
        again = f"make -C {folder} setup" if self.by_make else self._command("", "", newest=True)
        return f"git -C {folder} pull --ff-only && {again}"

    def describe(self) -> str:
        """Return in words what installed this and from what."""
        by = "make setup" if self.by_make else self.installer
        where = f"image {self.image}" if self.installer == "container" else f"{by}, environment of {self.python}"
        return f"{where}, from {self.source.describe()}"

    def _command(self, extra: str, torch: str, *, newest: bool) -> str:
        if self.installer == "container":
            added = f"--build-arg EXTRAS={shlex.quote(extra)} " if extra else ""
            image = shlex.quote(self.image)
            target = f"--target {image} --tag {image} FOLDER_OF_THE_CONTAINERFILE"
            return f"podman build --format docker --pull {added}{target}"
        extras = tuple(sorted({*self.extras, *filter(None, [extra])}))
        words = shlex.quote(self.source.requirement(extras, newest=newest))
        words = f"-e {words}" if self.source.kind == "checkout" else words
        upgrade = "--upgrade " if newest else ""
        if self.installer in ("uv tool", "pipx"):
            torch = torch or self.torch
        index = f"--extra-index-url {shlex.quote(TORCH_BUILDS + torch)} " if torch else ""
        backend = f"--torch-backend {shlex.quote(torch)} " if torch else ""
        if self.installer == "uv tool":
            return f"uv tool install --force {upgrade}{backend}{words}"
        if self.installer == "pipx":
            return f"{self._torch_variable(torch)}pipx install --force {words}"
        python = shlex.quote(self.python)
        if self.installer == "uv pip":
            return f"uv pip install --python {python} {upgrade}{backend}{words}"
        user = "--user " if self.installer == "pip --user" else ""
        return f"{python} -m pip install {user}{upgrade}{index}{words}"

    def _torch_variable(self, torch: str) -> str:
        if not torch:
            return ""
        if self.backend == "uv":
            return f"UV_TORCH_BACKEND={shlex.quote(torch)} "
        return f"PIP_EXTRA_INDEX_URL={shlex.quote(TORCH_BUILDS + torch)} "


def source_of(direct_url: str | None) -> InstallSource:
    """Return the source that a `direct_url.json` names; None: there is none, so it came from an index."""
    if direct_url is None:
        return InstallSource("index")
    try:
        facts = json.loads(direct_url)
        url = str(facts["url"])
        if "vcs_info" in facts:
            git = facts["vcs_info"]
            within = str(facts.get("subdirectory", ""))
            return InstallSource("git", url, str(git["commit_id"]), str(git.get("requested_revision", "")), within)
        if not url.startswith("file:"):
            return InstallSource("address", url)
        place = unquote(urlsplit(url).path)
        if "dir_info" not in facts:
            return InstallSource("file", place, there=os.path.isfile(place))
        kind: Kind = "checkout" if facts["dir_info"].get("editable") else "folder"
        return InstallSource(kind, place, there=os.path.isdir(place))
    except (ValueError, KeyError, TypeError, AttributeError):
        return InstallSource("none")


def read_installation(environment: Mapping[str, str] = os.environ) -> Installation:
    """Return this process's installation. Raises `RunsUninstalled`."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distributed = distribution(NAME)
    except PackageNotFoundError:
        folder = Path(__file__).resolve().parent.parent
        command = f"{shlex.quote(sys.executable)} -m pip install -e {shlex.quote(str(folder))}"
        raise RunsUninstalled(f"echo2 runs from {folder} and is not installed: `{command}` installs it") from None
    source = source_of(distributed.read_text("direct_url.json"))
    installed = installation_of(
        Path(sys.prefix),
        source,
        python=sys.executable,
        installer=(distributed.read_text("INSTALLER") or "").strip(),
        of_user=str(Path(str(distributed.locate_file(""))).resolve()) == _user_site(),
        image=environment.get(CONTAINER, ""),
    )
    return replace(installed, torch=build_of(version_of("torch")))


def public_install_command() -> str:
    """Return the command by which somebody else installs this process's build."""
    try:
        return read_installation().source.public_command()
    except RunsUninstalled:
        return IN_A_CLONE


def build_of(version: str) -> str:
    """Return the build that a version of PyTorch names, as its index does: cpu of 2.13.0+cpu; empty: none."""
    label = version.partition("+")[2]
    return label if re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", label) else ""


def command_adding(extra: str, torch: str = "") -> str:
    """Return the shell command that adds an extra to this process's installation; where it runs from a folder that is
    not installed, the one that installs that. `torch`: see `Installation.install_command`."""
    try:
        return read_installation().install_command(extra, torch)
    except RunsUninstalled:
        folder = Path(__file__).resolve().parent.parent
        return Installation("pip", InstallSource("checkout", str(folder)), sys.executable).install_command(extra, torch)


def _user_site() -> str:
    import site

    return str(Path(site.getusersitepackages()).resolve())


def installation_of(
    prefix: Path, source: InstallSource, *, python: str, installer: str, of_user: bool = False, image: str = ""
) -> Installation:
    """Return the installation in the environment `prefix`. `installer`: content of the distribution's INSTALLER.
    `of_user`: whether it lies in the user's own site-packages."""
    if image:
        return Installation("container", source, python, image=image)
    if (prefix / "uv-receipt.toml").is_file():
        return Installation("uv tool", source, python, _extras_of_uv(prefix / "uv-receipt.toml"))
    if (prefix / "pipx_metadata.json").is_file():
        extras, backend = _facts_of_pipx(prefix / "pipx_metadata.json")
        return Installation("pipx", source, python, extras, backend)
    if installer == "uv":
        return Installation("uv pip", source, python)
    if of_user:
        return Installation("pip --user", source, python)
    by_make = source.kind == "checkout" and (prefix / ".installed").is_file()
    return Installation("pip", source, python, by_make=by_make)


def _extras_of_uv(receipt: Path) -> tuple[str, ...]:
    try:
        needs: list[Any] = tomllib.loads(receipt.read_text("utf-8"))["tool"]["requirements"]
        return tuple(extra for need in needs if need["name"] == NAME for extra in need.get("extras", ()))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _facts_of_pipx(metadata: Path) -> tuple[tuple[str, ...], str]:
    """Return the extras that pipx was asked for, and what it installs by."""
    try:
        facts = json.loads(metadata.read_text("utf-8"))
        asked = str(facts["main_package"]["package_or_url"])
    except (OSError, ValueError, KeyError, TypeError):
        return (), ""
    before = asked.partition(" @ ")[0].strip()
    inner = before[before.rindex("[") + 1 : -1] if before.endswith("]") and "[" in before else ""
    return tuple(extra.strip() for extra in inner.split(",") if extra.strip()), str(facts.get("backend", "pip"))
