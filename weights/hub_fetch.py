"""Fetch a model of the Hugging Face hub, hf:ORG/NAME or hf:ORG/NAME@REVISION, into its cache (weights/hub_cache.py).

Rules
1. A revision is resolved to a commit once, and every file is asked for by that commit. Where the commit is named and
   the cache has it whole, nothing is asked for.
2. Only the files that the caller names, and safetensors weights, are fetched: no pickle, no code.
3. A transfer that is cut goes on from its last byte, at the next run as well. So the files come over plain HTTP, as the
   hub's other protocol (Xet) cannot go on.
4. A file is in the cache only after its bytes gave the hash that the hub stated for that commit.
"""

import hashlib
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote

import msgspec

from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.files import room
from echo2.runtime.lock import AlreadyLocked, lock_file
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import INDEX, SINGLE_FILE, shard_names, stored_headers
from echo2.weights.hub_cache import cache_folder

PREFIX: Final = "hf:"
_NAME: Final = re.compile(
    r"hf:(?P<model>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]{1,255}))?", re.ASCII
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_HUB: Final = "https://huggingface.co"
_MOST_LISTING: Final = 32 << 20
"""Most bytes of a description; that of a model with a thousand files has under 1 MB."""
_TRIES: Final = 5
"""Transfers in a row without a new byte, after which a file is given up."""
_RETRY_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 10.0
_REPORT_SHARE: Final = 0.1
_MB: Final = 1e6


class HubUnreachable(LocalFault):
    """The hub does not answer, or a transfer was cut; what was fetched stays for the next try."""


class HubName(NamedTuple):
    """A model of the hub. `model`: ORG/NAME. `revision`: branch, tag or commit; empty: the newest commit."""

    model: str
    revision: str


class _HubFile(NamedTuple):
    """A file of a commit. `digest`: SHA-256 of its bytes where it is stored apart, else git's id of it (SHA-1)."""

    name: str
    nbytes: int
    digest: str


def parse(text: str) -> HubName | None:
    """Return the model of the hub that a text names; None: it names none. Raises `LocalFault` for a malformed one."""
    if not text.startswith(PREFIX):
        return None
    named = _NAME.fullmatch(text)
    if named is None:
        raise LocalFault(f"{text!r:.200} names no model of the hub: write hf:ORG/NAME, or hf:ORG/NAME@REVISION")
    return HubName(named["model"], named["revision"] or "")


def fetch(
    name: HubName,
    wanted: Sequence[str],
    needed: Collection[str],
    report: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Return the folder of a model's commit in the cache, with those of the files `wanted` that it has, all of `needed`
    among them, and its weights. Raises `LocalFault`, `HubUnreachable`, `DiskFull`."""
    repository = cache_folder(environ) / f"models--{name.model.replace('/', '--')}"
    if _COMMIT.fullmatch(name.revision) and _is_whole(folder := repository / "snapshots" / name.revision, needed):
        report(f"{name.model} is in the cache at commit {name.revision}")
        return folder
    hub = _Hub(environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB, name)
    commit, files = hub.list_files()
    for each in needed:
        if each not in files:
            raise LocalFault(f"{name.model} at {commit} has no {each}: name a model as `save_pretrained` writes it")
    weights = SINGLE_FILE if SINGLE_FILE in files else INDEX
    if weights not in files:
        raise LocalFault(
            f"{name.model} at {commit} has no safetensors weights; pickled and converted ones are never read: name "
            "another model, or save it anew with save_pretrained"
        )
    folder = repository / "snapshots" / commit
    try:
        with room(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (repository / "blobs").mkdir(exist_ok=True)
        with lock_file(repository / ".echo2-lock"):
            first = [files[each] for each in dict.fromkeys((*wanted, weights)) if each in files]
            _fetch_all(hub, commit, folder, first, report)
            shards = _shards(folder, files) if weights == INDEX else []
            _fetch_all(hub, commit, folder, shards, report)
    except AlreadyLocked as error:
        raise LocalFault(f"another command fetches {name.model} into {repository}: wait until it has ended") from error
    except OSError as error:
        raise LocalFault(f"cannot write in {repository}: {error.strerror or error}") from error
    report(f"{name.model} is at commit {commit}, in {folder}")
    return folder


class _Stored(msgspec.Struct):
    """Where a hub keeps the bytes of a large file. `sha256`: their hash."""

    sha256: str = ""


class _Row(msgspec.Struct, rename="camel"):
    """A file in a hub's listing. `rfilename`: its path."""

    rfilename: str
    size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    blob_id: str | None = None
    lfs: _Stored | None = None


class _Listing(msgspec.Struct):
    """A hub's description of one commit of a model."""

    sha: str | None = None
    siblings: list[_Row] = []


class _Hub:
    """The hub at `endpoint`, asked about one model. It is not trusted: of an answer no more is read than was stated, or
    than `_MOST_LISTING`."""

    def __init__(self, endpoint: str, name: HubName) -> None:
        self.endpoint, self.name = endpoint, name

    def list_files(self) -> tuple[str, dict[str, _HubFile]]:
        """Return the commit of the revision, and the files at its root by name. Raises `LocalFault`."""
        revision = f"/revision/{quote(self.name.revision, safe='')}" if self.name.revision else ""
        body = bytearray()
        with self._faults(), self._answer(f"{self.endpoint}/api/models/{self.name.model}{revision}?blobs=true") as got:
            for piece in got.iter_bytes():
                body += piece
                if len(body) > _MOST_LISTING:
                    raise LocalFault(f"{self.endpoint} describes {self.name.model} without end: is HF_ENDPOINT a hub?")
        try:
            listing = msgspec.json.decode(body, type=_Listing)
        except (ValueError, RecursionError) as error:
            raise LocalFault(
                f"{self.endpoint} gives no list of the files of {self.name.model} ({error}): is HF_ENDPOINT a hub, and "
                "is a proxy or a login page between?"
            ) from error
        commit = listing.sha or ""
        if not _COMMIT.fullmatch(commit) or (_COMMIT.fullmatch(self.name.revision) and commit != self.name.revision):
            raise LocalFault(f"{self.endpoint} names no commit for {self.name.model}@{self.name.revision or 'newest'}")
        return commit, _files_of(listing)

    def fetch(self, commit: str, file: _HubFile, target: BinaryIO) -> None:
        """Append the bytes of a file that are lacking. Raises `LocalFault`, OSError of the disk."""
        from huggingface_hub import errors, hf_hub_url

        url = hf_hub_url(self.name.model, file.name, revision=commit, endpoint=self.endpoint)
        lost: type[Exception] = getattr(errors, "HTTPError")  # noqa: B009 (as below)
        most, left = target.seek(0, os.SEEK_END), _TRIES
        with self._faults():
            while (at := target.seek(0, os.SEEK_END)) < file.nbytes:
                if at > most:
                    most, left = at, _TRIES
                try:
                    self._append(url, file, target, at)
                    cut = None
                except lost as error:
                    if isinstance(error, errors.HfHubHTTPError):
                        raise
                    cut = error
                if target.seek(0, os.SEEK_END) <= most:
                    left -= 1
                    if not left:
                        raise cut or HubUnreachable(f"{file.name} of {self.name.model} was cut: try again")
                    time.sleep(_RETRY_SECONDS)

    def _append(self, url: str, file: _HubFile, target: BinaryIO, at: int) -> None:
        """Append the bytes from `at` on; where the hub gives the file from its start, they replace what is there."""
        with self._answer(url, {"Range": f"bytes={at}-"} if at else {}) as answer:
            if at and answer.status_code != 206:
                at = target.truncate(0)
            stated = answer.headers.get("Content-Length", "")
            other = stated.isdecimal() and "Content-Encoding" not in answer.headers and int(stated) != file.nbytes - at
            for piece in () if other else answer.iter_bytes():
                at += len(piece)
                if other := at > file.nbytes:
                    target.truncate(0)
                    break
                target.write(piece)
        if other:
            raise LocalFault(
                f"{self.endpoint} sends {file.name} of {self.name.model} in another size than it states: try again, "
                "without a proxy or a login page between"
            )

    @contextmanager
    def _answer(self, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[Any]:
        """Ask, and yield the answer, whose body is not read yet. Of a refusal no body is read. The token goes to the
        endpoint alone: a redirect to another host is followed without it."""
        from huggingface_hub import constants
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it names two without exporting them
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        headers = {**build_hf_headers(), "Accept-Encoding": "identity", **headers}  # ranges count the file's bytes
        with get_session().stream(
            "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
        ) as answer:
            if answer.status_code not in (200, 206):
                told = {name: value for name, value in answer.headers.items() if name.lower().startswith("x-")}
                hf_raise_for_status(type(answer)(answer.status_code, headers=told, request=answer.request))
                raise HubUnreachable(f"{self.endpoint} answers {answer.status_code}: try again")
            yield answer

    def _faults(self) -> "_Faults":
        return _Faults(self)


class _Faults:
    """Translate the faults of the hub's library inside a `with` block into `LocalFault`."""

    def __init__(self, hub: _Hub) -> None:
        self._hub = hub

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from huggingface_hub import errors

        model, endpoint = self._hub.name.model, self._hub.endpoint
        lost: type[Exception] = getattr(errors, "HTTPError")  # noqa: B009 (the library names it without exporting it)
        if isinstance(error, errors.GatedRepoError):
            raise LocalFault(
                f"{model} is given only after an agreement: accept it at {endpoint}/{model}, then name your token by "
                "HF_TOKEN, or log in with `hf auth login`"
            ) from error
        if isinstance(error, errors.RevisionNotFoundError):
            raise LocalFault(
                f"{model} has no revision {self._hub.name.revision}: look at {endpoint}/{model}"
            ) from error
        if isinstance(error, errors.RepositoryNotFoundError):
            raise LocalFault(
                f"{endpoint} has no model {model} that it shows you: check the name; for one that is not public, name "
                "your token by HF_TOKEN"
            ) from error
        if isinstance(error, errors.OfflineModeIsEnabled):
            raise HubUnreachable(f"HF_HUB_OFFLINE keeps {model} from being fetched: unset it") from error
        if isinstance(error, ValueError) or type(error).__name__ == "InvalidURL":  # the library's, of no other kind
            raise LocalFault(
                f"{model} cannot be asked for ({error}): look at HF_ENDPOINT, HF_TOKEN and the variables of proxies"
            ) from error
        if isinstance(error, lost):
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise HubUnreachable(
                f"{model} cannot be fetched from {endpoint} ({reason}): try again, which goes on where it ended, or "
                "name the folder of a model that you have"
            ) from error


def _files_of(listing: _Listing) -> dict[str, _HubFile]:
    files = dict[str, _HubFile]()
    for one in listing.siblings:
        digest = (one.lfs.sha256 if one.lfs is not None else "") or one.blob_id
        if one.size is not None and digest and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", digest):
            files[one.rfilename] = _HubFile(one.rfilename, one.size, digest)
    return files


def _shards(folder: Path, files: Mapping[str, _HubFile]) -> list[_HubFile]:
    """Return the shards that an index names. Raises `LocalFault`."""
    try:
        names = shard_names(folder / INDEX)
    except BadSnapshot as error:
        raise LocalFault(str(error)) from error
    missing = [name for name in names if name not in files]
    if missing:
        raise LocalFault(f"{folder / INDEX} names the shard {missing[0]!r}, which the hub does not have")
    return [files[name] for name in names]


def _is_whole(folder: Path, needed: Collection[str]) -> bool:
    """Tell whether a commit's folder has the needed files and all weights."""
    try:
        return all((folder / name).is_file() for name in needed) and bool(stored_headers(folder))
    except (BadSnapshot, OSError):
        return False


def _fetch_all(hub: _Hub, commit: str, folder: Path, files: Sequence[_HubFile], report: Callable[[str], None]) -> None:
    """Fetch the files that a commit's folder lacks, and report how far it is."""
    blobs = folder.parent.parent / "blobs"
    missing = [file for file in files if not (folder / file.name).is_file()]
    if not missing:
        return
    progress = _Progress(sum(file.nbytes for file in missing), report)
    for file in missing:
        progress.done += min(_size(_partial(blobs, file)), file.nbytes)
    left, free = progress.total - progress.done, shutil.disk_usage(blobs).free
    if left > free:
        raise DiskFull(f"the disk of {blobs} has {free / _MB:,.0f} MB free, and {left / _MB:,.0f} MB are to be fetched")
    begun = f", of which {progress.done / _MB:,.1f} are here" if progress.done else ""
    files_wanted = number_of(len(missing), "file")
    report(f"fetching {hub.name.model}, {files_wanted}, {progress.total / _MB:,.1f} MB{begun}")
    for file in missing:
        if not (blobs / file.digest).is_file():
            _fetch_one(hub, commit, blobs, file, progress)
        link = folder / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..", "..", "blobs", file.digest))


def _fetch_one(hub: _Hub, commit: str, blobs: Path, file: _HubFile, progress: "_Progress") -> None:
    """Fetch one file, from where an earlier transfer was cut (rules 3 and 4)."""
    partial = _partial(blobs, file)
    if _size(partial) > file.nbytes:
        partial.unlink()
    with room(partial), _Counted(partial, progress) as target:
        hub.fetch(commit, file, target)
        target.flush()
        os.fsync(target.fileno())
    if _digest(partial, file) != file.digest:
        partial.unlink()
        raise LocalFault(f"{file.name} of {hub.name.model} came with other bytes than the hub states: fetch it again")
    partial.replace(blobs / file.digest)


def _partial(blobs: Path, file: _HubFile) -> Path:
    return blobs / f"{file.digest}.echo2-incomplete"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path, file: _HubFile) -> str:
    hasher = hashlib.sha256() if len(file.digest) == 64 else hashlib.sha1(f"blob {file.nbytes}\0".encode())
    with path.open("rb") as data:
        while piece := data.read(1 << 20):
            hasher.update(piece)
    return hasher.hexdigest()


class _Progress:
    """How far a transfer is. It reports at each tenth, and at most `_REPORT_SECONDS` apart while bytes come."""

    def __init__(self, total: int, report: Callable[[str], None]) -> None:
        self.total, self.done = total, 0
        self._report, self._share, self._at = report, 0.0, time.monotonic()

    def add(self, count: int) -> None:
        """Count bytes that came."""
        self.done += count
        share, now = min(1.0, self.done / max(1, self.total)), time.monotonic()
        if share >= self._share + _REPORT_SHARE or share == 1.0 > self._share or now >= self._at + _REPORT_SECONDS:
            self._share, self._at = share, now
            self._report(f"  {100 * share:.0f} %, {self.done / _MB:,.1f} of {self.total / _MB:,.1f} MB")


class _Counted(io.BufferedRandom):
    """A file whose writes are counted, opened to append."""

    def __init__(self, path: Path, progress: _Progress) -> None:
        super().__init__(io.FileIO(path, "ab+"))
        self._progress = progress

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        count = super().write(data)
        self._progress.add(count)
        return count
