"""`echo2-coord policy export`: a published version as a folder that loads wherever its base loads.

Rules
1. The folder has the base's own files byte for byte, but for the number type in config.json where training changed it;
   the weights; `echo2-version.json`, by which anybody can verify them; and a model card.
2. A run of adapters gives a PEFT adapter, or with `merged` a whole model, which is no signed version. With `gguf` a
   whole model has its GGUF file too (publishing/version_gguf.py); whether it can is known before weights are written.
3. The folder is loaded again before it is there, and its content root compared with the version's. It appears whole, or
   not at all; an existing one is refused.
4. Nothing of the run is written or locked, so this works while the coordinator runs.
5. It is written in a hidden folder of a fixed name beside its place, which is locked meanwhile. The next export
   to that place removes the files that a killed one left there. A link of that name, or another user's folder, is
   refused.
"""

import asyncio
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from echo2.coordinator.command_line import policy_card, versions_report
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.publishing.stored_weights import StoredWeights
from echo2.coordinator.publishing.version_gguf import PlannedFile
from echo2.coordinator.run import chat_settings, model_folder, setup
from echo2.coordinator.training.guarding import FACT, GuardRecord
from echo2.p2p.envelope import verify_envelope
from echo2.protocol import root_chain
from echo2.protocol.authority import RunSpec
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing
from echo2.runtime.lock import AlreadyLocked, lock_folder
from echo2.weights.documents import Edge, Version
from echo2.weights.errors import WeightsError
from echo2.weights.hf_export import (
    ExportedTensor,
    OtherNames,
    float_dtype_of,
    merged_tensors,
    tensors_of,
    write_tensors,
)
from echo2.weights.lora.adapter_config import BASE_FILE, CONFIG, read_config
from echo2.weights.lora.frozen_base import FrozenBase
from echo2.weights.snapshot import Snapshot
from echo2.weights.virtual_snapshot import write_out

VERSION_FILE: Final = "echo2-version.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
RENAMED_FILE: Final = "renamed.safetensors"
"""A version under the names of its base, while it is written."""
LOADED_FILE: Final = "loaded.safetensors"
"""A folder's weights as they were loaded, while they are compared."""
Form = Literal["model", "adapter", "merged"]
_NUMBER_TYPE: Final = re.compile(rb'("(?:torch_)?dtype"\s*:\s*")(float32|float16|bfloat16)(")')


class VersionFile(msgspec.Struct, frozen=True, kw_only=True):
    """echo2-version.json. `roots`, `sealed`: the run's Roots and the Version, signed, as they are published. `form`:
    what the folder's weights are; a merged one is no signed version."""

    run: str
    version: int
    root: str
    form: Form
    roots: list[bytes]
    sealed: bytes


class ExportedFolder(NamedTuple):
    """A folder that was written. `root`: content root of the version. `gguf`: name of its GGUF file, or empty."""

    folder: Path
    version: int
    root: bytes
    form: Form
    gguf: str


class _Chosen(NamedTuple):
    """A version to be exported. `sealed`: its document as it is published."""

    version: Version
    sealed: bytes


def export(home: RunFolder, which: str, out: Path, *, merged: bool = False, gguf: bool = False) -> ExportedFolder:
    """Write the folder of a version: a number, `latest`, or `best` by held-out results. Raises `LocalFault`,
    `Untrusted`."""
    if out.exists():
        raise LocalFault(f"{out} is there already: name a folder that is not")
    if gguf and not merged and read_config(home.model) is not None:
        raise LocalFault("the versions of this run are adapters: a GGUF file is of a whole model, so add --merged")
    roots, chain, _, spec = setup.read_documents(home)
    try:
        with versions_report.reading(home) as store, _draft(out) as draft:
            chosen = _choose(home, which, versions_report.documents_of(store, chain, "version", Version))
            planned = _plan_gguf(home, spec, chosen.version.version) if gguf else None
            edges = [edge for edge, _ in versions_report.documents_of(store, chain, "edge", Edge)]
            weights = StoredWeights(store, lambda: edges).read(chosen.version.root)
            if weights is None:
                raise LocalFault(
                    f"the weights of version {chosen.version.version} are not stored any more: `echo2-coord policy ls` "
                    "shows those that are"
                )
            snapshot = write_out(weights, draft / "version.safetensors")
            form = _write_weights(home.model, spec.model, snapshot, draft, merged)
            snapshot.path.unlink()
            told = VersionFile(
                run=chain[-1].run.hex(), version=chosen.version.version, root=chosen.version.root.hex(), form=form,
                roots=list(roots), sealed=chosen.sealed,
            )  # fmt: skip
            _write(draft / VERSION_FILE, msgspec.json.format(msgspec.json.encode(told), indent=2))
            file = "" if planned is None else planned.name
            _write(draft / "README.md", policy_card.card_of(home, spec, told, file).encode())
            _check_root(draft, told, draft)
            if planned is not None:
                planned.write(draft)
            draft.rename(out)
    except WeightsError as error:
        raise LocalFault(str(error)) from error
    return ExportedFolder(out, chosen.version.version, chosen.version.root, form, file)


@contextmanager
def model_of_version(model: str) -> Iterator[str]:
    """Yield the folder that a model names. `RUN@VERSION` is exported into one that goes again. Raises as `export`."""
    path, _, which = model.rpartition("@")
    home = RunFolder(Path(path))
    if not path or not home.runspec.is_file():
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="echo2-") as scratch:
        name = f"{home.path.resolve().name}-{which}"
        adapted = read_config(home.model) is not None
        yield str(export(home, which, Path(scratch) / name, merged=adapted).folder)


def verify(folder: Path) -> VersionFile:
    """Check that a folder has the weights of a signed version; return what it says of it. Raises `LocalFault`,
    `Untrusted`."""
    try:
        told = msgspec.json.decode((folder / VERSION_FILE).read_bytes(), type=VersionFile)
    except FileNotFoundError as error:
        raise LocalFault(f"{folder} has no {VERSION_FILE}: `echo2-coord policy export` writes one") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise LocalFault(f"{folder / VERSION_FILE} cannot be read: {error}") from error
    chain = root_chain.check_chain(told.roots)
    keys = {key for one in chain for key in one.roles["policy"].keys}
    signed = Version.from_bytes(verify_envelope(told.sealed, "version", chain[-1].run, keys))
    if (chain[-1].run.hex(), signed.version, signed.root.hex()) != (told.run, told.version, told.root):
        raise Untrusted(f"{folder / VERSION_FILE} names another version than the one that is signed in it")
    if told.form == "merged":
        raise LocalFault(f"{folder} is an adapter merged into its base, which is no signed version: export it without")
    with _draft(folder) as scratch:
        _check_root(folder, told, scratch)
    return told


def _choose(home: RunFolder, which: str, known: list[tuple[Version, bytes]]) -> _Chosen:
    if not known:
        raise LocalFault("no version is published yet: `echo2-coord run` publishes version 0")
    newest = max(known, key=lambda one: (one[0].era, one[0].version))
    if which == "latest":
        return _Chosen(*newest)
    if which == "best":
        return _Chosen(*_best(home, known))
    if not which.isdecimal():
        raise LocalFault(f"{which!r:.40} is no version: name a number, latest or best")
    named = [one for one in known if one[0].version == int(which)]
    if not named:
        raise LocalFault(f"there is no version {which}: the newest one is {newest[0].version}")
    return _Chosen(*max(named, key=lambda one: one[0].era))


def _best(home: RunFolder, known: list[tuple[Version, bytes]]) -> tuple[Version, bytes]:
    with Database.read(home.database) as database:
        stored = database.fact(FACT)
    exam = msgspec.json.decode(stored, type=GuardRecord).state.best_exam if stored else None
    best = None if exam is None else next((one for one in known if one[0].root == exam.root), None)
    if best is None:
        raise LocalFault("no version has a held-out result yet: name a number, or latest")
    return best


def _write_weights(base: Path, model: str, version: Snapshot, out: Path, merged: bool) -> Form:
    """Write the weights and the base's own files; return what they are. `model`: name of the base, for an adapter."""
    adapter = read_config(base)
    if adapter is None and merged:
        raise LocalFault("the versions of this run are whole models: leave out --merged")
    for name in (*model_folder.ASSETS, *model_folder.OPTIONAL_FILES):
        if (base / name).is_file():
            shutil.copyfile(base / name, out / name)
    if adapter is None:
        _write_model(out, _tensors_of(version, base, out))
        return "model"
    if merged:
        _write_model(out, merged_tensors(version, adapter, FrozenBase(base / BASE_FILE)))
        return "merged"
    (out / "config.json").unlink()
    settings = msgspec.json.decode((base / CONFIG).read_bytes()) | {"base_model_name_or_path": model}
    _write(out / CONFIG, msgspec.json.format(msgspec.json.encode(settings), indent=2))
    write_tensors(out / ADAPTER_WEIGHTS, [_own(version, entry.name) for entry in version.tensors])
    return "adapter"


def _plan_gguf(home: RunFolder, spec: RunSpec, version: int) -> PlannedFile:
    return PlannedFile(home.model, spec, version, chat_settings.template_of(home.model))


def _own(version: Snapshot, name: str) -> ExportedTensor:
    entry = next(entry for entry in version.tensors if entry.name == name)
    return ExportedTensor(entry, lambda: version.bits(name))


def _tensors_of(version: Snapshot, base: Path, out: Path) -> list[ExportedTensor]:
    """Return a version's tensors under the base's names; the library that loaded the base knows them where they are
    others in memory (weights/hf_export.py, rule 2)."""
    named = Snapshot(base / model_folder.WEIGHTS)
    try:
        return tensors_of(version, named)
    except OtherNames:
        renamed = out / RENAMED_FILE
        asyncio.run(model_folder.write_as_base(base, version.path, renamed))
        return tensors_of(Snapshot(renamed), named)


def _write_model(out: Path, tensors: list[ExportedTensor]) -> None:
    write_tensors(out / model_folder.WEIGHTS, tensors)
    (out / RENAMED_FILE).unlink(missing_ok=True)
    dtype = float_dtype_of(tensors)
    if dtype is not None:
        config = (out / "config.json").read_bytes()
        _write(out / "config.json", _NUMBER_TYPE.sub(rb"\g<1>" + dtype.encode() + rb"\g<3>", config))


def _check_root(folder: Path, told: VersionFile, scratch: Path) -> None:
    """Load the folder's weights, and compare their content root. `scratch`: folder for one file that goes again. Raises
    `Untrusted`, `LocalFault`."""
    if told.form == "merged":
        return
    if told.form == "adapter":
        root = Snapshot(folder / ADAPTER_WEIGHTS).root
    else:
        root = asyncio.run(model_folder.write_base(folder, scratch / LOADED_FILE))
        (scratch / LOADED_FILE).unlink()
    if root.hex() != told.root:
        raise Untrusted(f"the weights of {folder} are not those of version {told.version}: do not use them")


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """Yield an empty, locked folder beside `out`, and remove it if it is still there (rule 5). Raises `LocalFault`."""
    draft = out.resolve().parent / f".{out.resolve().name}.echo2-draft"
    try:
        draft.mkdir(parents=True, exist_ok=True)
        status = draft.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise LocalFault(f"{draft} is a link, or another user's folder: remove it, or name another folder")
        with lock_folder(draft):
            try:
                _empty(draft)
                yield draft
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except AlreadyLocked as error:
        raise LocalFault(f"another process works on {out}: wait for its end, or name another folder") from error
    except OSError as error:
        raise LocalFault(f"cannot write {out}: {error.strerror or error}; name another folder") from error


def _empty(draft: Path) -> None:
    """Remove what a killed process left in a draft."""
    for one in draft.iterdir():
        one.unlink()


def _write(path: Path, content: bytes) -> None:
    with writing(path) as file:
        file.write(content)
