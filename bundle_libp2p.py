"""Makes `echo2/_libp2p`: the modules of py-libp2p that echo2 uses, under a name of its own. So are multiaddr, which
needs libraries without a wheel, and noiseprotocol, which would install a package `examples`.

1. pip downloads them by the hashes of requirements-libp2p.lock, so your index and proxy count. A bundle whose `STAMP`
   names this lock and this file is not made again: a source distribution carries the bundle, and building a wheel from
   it needs no network.
2. Kept are the modules that `ROOTS` import, and those that these import, and so on. A package's `__init__` is empty,
   but for the names that a kept module takes from it.
3. Import lines are rewritten: to the new name, and by `INSTEAD` to code of ours or of the standard library, which
   spares echo2 twenty distributions, some of which have no wheel. All else that is changed stands in `EDITS` and `CUTS`
   with its reason; whatever does not match exactly once ends the build.
4. The result replaces an earlier one as a whole. When the build fails, the earlier one stays.
"""

import ast
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

LOCK: Final = "requirements-libp2p.lock"
HERE: Final = "echo2/_libp2p"
NAME: Final = "echo2._libp2p"
STAND_INS: Final = "echo2.p2p.libp2p"
BUNDLED: Final = {"libp2p": "libp2p", "multiaddr": "multiaddr", "noiseprotocol": "noise"}
"""Distribution -> its package."""
PACKAGES: Final = tuple(BUNDLED.values())
ROOTS: Final = (
    "libp2p.host.basic_host",
    "libp2p.io.trio",
    "libp2p.network.swarm",
    "libp2p.peer.peerstore",
    "libp2p.relay.circuit_v2.pb.circuit_pb2",
    "libp2p.relay.circuit_v2.pb.dcutr_pb2",
    "libp2p.security.noise.transport",
    "libp2p.stream_muxer.yamux.yamux",
    "libp2p.transport.tcp.tcp",
    "libp2p.transport.upgrader",
)
"""Modules that p2p/libp2p imports, without those that these import anyway."""
INSTEAD: Final = {
    r"from google\.protobuf import descriptor_pool": f"from {STAND_INS} import descriptor_pool",
    r"from libp2p\.crypto\.(ed25519|rsa|secp256k1) import": f"from {STAND_INS}.identity_keys import",
    r"from multicodec(\.code_table)? import": f"from {STAND_INS}.multicodec import",
    r"from trio_typing import": "from trio import",
    r"import (multihash|varint)$": rf"from {STAND_INS} import \1",
}
"""Import lines, and what stands in their place."""
WHOLE_INITS: Final = ("multiaddr.codecs", "noise.backends.default")
"""Packages whose `__init__` defines what their modules import."""


class Edit(NamedTuple):
    """One change of a module's text, which must match exactly once."""

    module: str
    old: str
    new: str
    why: str


class Cut(NamedTuple):
    """One function, class or method that is left out."""

    module: str
    name: str
    why: str


NO_DISCOVERY: Final = "discovery and port mapping of upstream, which need zeroconf and miniupnpc; they are off here"
NO_NETADDR: Final = "Python's ipaddress does the same; netaddr is 10 MB of registries"
EDITS: Final = (
    Edit("libp2p.custom_types", "from libp2p.transport.quic.stream import QUICStream", "QUICStream = object",
         "a type of QUIC, which needs aioquic; only TCP is spoken here"),
    Edit("libp2p.host.basic_host", "\nimport libp2p\n", "\n", "the package's `__init__` is empty"),
    Edit("libp2p.host.basic_host", "\nimport libp2p.utils.paths\n", "\n", "only AutoTLS uses it"),
    Edit("libp2p.host.basic_host", "from libp2p.discovery.bootstrap.bootstrap import BootstrapDiscovery\n", "",
         NO_DISCOVERY),
    Edit("libp2p.host.basic_host",
         "from libp2p.discovery.mdns.mdns import (\n    MDNSDiscovery,\n    create_mdns_discovery,\n)\n", "",
         NO_DISCOVERY),
    Edit("libp2p.host.basic_host", "from libp2p.discovery.upnp.upnp import UpnpManager\n", "", NO_DISCOVERY),
    Edit("libp2p.host.basic_host",
         "from libp2p.security.tls.autotls.acme import (\n    ACMEClient,\n    compute_b36_peer_id,\n)\n", "",
         "AutoTLS needs httpx and requests; there is no TLS here"),
    Edit("libp2p.host.basic_host", "from libp2p.security.tls.autotls.broker import BrokerClient\n", "", "AutoTLS"),
    Edit("libp2p.host.basic_host", "from libp2p.relay.circuit_v2.nat import is_private_ip\n", "",
         "only AutoTLS uses it"),
    Edit("libp2p.network.connection.swarm_connection",
         "from libp2p.stream_muxer.mplex.mplex import MPLEX_PROTOCOL_ID", 'MPLEX_PROTOCOL_ID = "/mplex/6.7.0"',
         "one name of a muxer that is not offered here"),
    Edit("libp2p.network.swarm", "from libp2p.security.pnet.protector import new_protected_conn\n", "",
         "private networks need pycryptodome; `psk` is None here"),
    Edit("libp2p.network.swarm", "from libp2p.transport.quic.config import QUICTransportConfig",
         "QUICTransportConfig = ConnectionConfig", "a type of QUIC"),
    Edit("libp2p.crypto.serialization",
         "key_type_to_private_key_deserializer = {\n"
         "    KeyType.Secp256k1.value: Secp256k1PrivateKey.from_bytes,\n"
         "    KeyType.RSA.value: RSAPrivateKey.from_bytes,\n"
         "    KeyType.Ed25519.value: Ed25519PrivateKey.from_bytes,\n}\n", "",
         "no private key is read here"),
    Edit("libp2p.crypto.serialization", "    Ed25519PrivateKey,\n", "", "no private key is read here"),
    Edit("libp2p.crypto.serialization", "    RSAPrivateKey,\n", "", "no private key is read here"),
    Edit("libp2p.crypto.serialization", "    Secp256k1PrivateKey,\n", "", "no private key is read here"),
    Edit("libp2p.peer.id", "import multibase\n", "", "peer ids are written in base58"),
    Edit("libp2p.peer.id", "from libp2p.encoding_config import get_default_encoding\n", "", "multibase"),
    Edit("libp2p.peer.id",
         "        if multibase.is_encoded(peer_id_str):\n            try:\n"
         "                pid = cls.from_multibase(peer_id_str)\n                multihash.decode(pid._bytes)\n"
         "                return pid\n            except (\n                multibase.InvalidMultibaseStringError,\n"
         "                multibase.DecodingError,\n                ValueError,\n            ):\n"
         "                pass  # fall through to base58\n", "",
         "peer ids are read in base58 alone; python-baseconv, which multibase needs, has no wheel"),
    Edit("libp2p.tools.anyio_service.trio_manager", "import trio_typing\n", "", "a decorator for type checkers alone"),
    Edit("libp2p.tools.anyio_service.trio_manager", "    @trio_typing.takes_callable_and_args\n    def run_task(",
         "    def run_task(", "a decorator for type checkers alone"),
    Edit("libp2p.tools.anyio_service.trio_manager",
         "    @trio_typing.takes_callable_and_args\n    def run_daemon_task(", "    def run_daemon_task(",
         "a decorator for type checkers alone"),
    Edit("libp2p.utils.version", 'f"py-libp2p/{version(\'libp2p\')}"', '"py-libp2p/{libp2p}"',
         "asks for a distribution's version, and none is installed"),
    Edit("multiaddr.codecs.certhash", "import multibase\nimport multihash\n", "import base64\nimport multihash\n",
         "python-baseconv, which multibase needs, has no wheel"),
    Edit("multiaddr.codecs.certhash", "multibase.decode(string)",
         'base64.urlsafe_b64decode(string[1:] + "=" * (-(len(string) - 1) % 4))', "multibase"),
    Edit("multiaddr.codecs.certhash", 'multibase.encode("base64url", buf)',
         'b"u" + base64.urlsafe_b64encode(buf).rstrip(b"=")', "multibase"),
    Edit("multiaddr.codecs.cid", "import cid\n", "", "a peer id as CID of version 1 is not read: multibase"),
    Edit("multiaddr.codecs.cid", "parsed = cid.make_cid(string)", 'raise ValueError("a CID of version 1")', "as above"),
    Edit("multiaddr.codecs.cid", "parsed = cid.from_bytes(buf)", 'raise ValueError("a CID of version 1")', "as above"),
    Edit("multiaddr.codecs.ip4", "import netaddr\n", "import ipaddress\n", NO_NETADDR),
    Edit("multiaddr.codecs.ip4", "netaddr.IPAddress(string, version=4)", "ipaddress.IPv4Address(string)", NO_NETADDR),
    Edit("multiaddr.codecs.ip4", 'netaddr.IPAddress(int.from_bytes(buf, byteorder="big"), version=4)',
         "ipaddress.IPv4Address(buf)", NO_NETADDR),
    Edit("multiaddr.codecs.ip4", "(ValueError, netaddr.AddrFormatError)", "ValueError", NO_NETADDR),
    Edit("multiaddr.codecs.ip6", "import netaddr\n", "import ipaddress\n", NO_NETADDR),
    Edit("multiaddr.codecs.ip6", "netaddr.IPAddress(string, version=6)", "ipaddress.IPv6Address(string)", NO_NETADDR),
    Edit("multiaddr.codecs.ip6", 'netaddr.IPAddress(int.from_bytes(buf, byteorder="big"), version=6)',
         "ipaddress.IPv6Address(buf)", NO_NETADDR),
)  # fmt: skip
CUTS: Final = (
    Cut("libp2p.abc", "IHost.initiate_autotls_procedure", "AutoTLS"),
    Cut("libp2p.crypto.serialization", "deserialize_private_key", "no private key is read here"),
    Cut("libp2p.host.basic_host", "BasicHost.initiate_autotls_procedure", "AutoTLS"),
    Cut("libp2p.peer.id", "ID.to_multibase", "multibase"),
    Cut("libp2p.peer.id", "ID.from_multibase", "multibase"),
    Cut("libp2p.transport.manager", "TransportManager._add_listen_addr_shared",
        "one port for TCP and WebSocket, which needs trio-websocket; there is no demultiplexer here"),
    Cut("libp2p.transport.quic.exceptions", "QUICErrorContext", "maps exceptions of aioquic; the classes are needed"),
)  # fmt: skip


class Broken(Exception):
    """The bundle cannot be made; the text is one sentence."""


def ensure(root: Path) -> Path:
    """Make the bundle in a checkout or an unpacked source distribution, unless it is there; return its folder. Raises
    `Broken`."""
    lock, target = (root / LOCK).read_bytes(), root / HERE
    stamp = hashlib.sha256(lock + Path(__file__).read_bytes()).hexdigest()
    written = target / "STAMP"
    if written.is_file() and written.read_text().strip() == stamp:
        return target
    with tempfile.TemporaryDirectory(prefix="._libp2p-", dir=target.parent) as folder:
        work = Path(folder)
        made = make(download(root / LOCK, work / "wheels"), work / "made")
        (made / "STAMP").write_text(stamp + "\n")
        if target.exists():
            target.rename(work / "former")
        made.rename(target)
    return target


def download(lock: Path, folder: Path) -> list[Path]:
    """Download the wheels that a lock names. Raises `Broken`."""
    flags = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *flags, "--dest", str(folder), "--requirement", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
        why = next((line for line in reversed(said) if "ERROR" in line), said[-1]).strip()
        raise Broken(
            f"libp2p, which goes into echo2's wheel, was not downloaded ({why}): check the connection and build again"
        )
    return sorted(folder.glob("*.whl"))


def make(wheels: list[Path], target: Path) -> Path:
    """Write the bundle of these wheels into a new folder; return it. Raises `Broken`."""
    sources, versions = {}, {}
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        versions[name] = version
        with zipfile.ZipFile(wheel) as opened:
            for member in opened.namelist():
                if member.endswith((".py", ".pyi")) and member.startswith(tuple(f"{one}/" for one in PACKAGES)):
                    sources[member] = opened.read(member).decode()
                elif re.search(r"\.dist-info/(licenses/.|LICENSE)", member):
                    write(target / "LICENSES" / f"{name}-{version}" / member.rpartition("/")[2], opened.read(member))
    if set(versions) != set(BUNDLED):
        raise Broken(f"{LOCK} must name the distributions {', '.join(BUNDLED)}, and no other")
    for path, text in Bundler(sources, versions).files():
        write(target / path, text.encode())
    return target


def write(path: Path, data: bytes) -> None:
    """Write a file, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class Bundler:
    """Chooses modules and rewrites them. `sources`: text by path within the wheels. `versions`: by distribution."""

    def __init__(self, sources: dict[str, str], versions: dict[str, str]) -> None:
        self._sources, self._versions = dict(sources), versions
        self._wanted: dict[str, set[str]] = {}
        """The names that are taken from each needed package's `__init__`."""
        self._needed: set[str] = set()
        for edit in EDITS:
            self._change(edit.module, edit.old, edit.new)
        for cut in CUTS:
            self._cut(cut.module, cut.name)
        for path, text in self._sources.items():
            for old, new in INSTEAD.items():
                text = re.sub(
                    rf"(?m)^(\s*){old}", lambda found, new=new: found[1] + found.expand(renumbered(new)), text
                )
            self._sources[path] = text
        codecs = [module_of(path) for path in sources if path.startswith("multiaddr/codecs/")]
        for module in (*ROOTS, *codecs):  # a codec is imported by its name in a table
            self._add(module)

    def files(self) -> Iterator[tuple[str, str]]:
        """Return the path and text of each file of the bundle."""
        packages = {module.rpartition(".")[0] for module in self._needed} | set(self._wanted) | set(PACKAGES)
        packages |= {package[:at] for package in packages for at, letter in enumerate(package) if letter == "."}
        for package in sorted(packages):
            yield placed(f"{package.replace('.', '/')}/__init__.py"), self._init(package)
        for module in sorted(self._needed):
            for path in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}.pyi"):
                if path in self._sources:
                    yield placed(path), renamed(self._sources[path], path)

    def _change(self, module: str, old: str, new: str) -> None:
        path = f"{module.replace('.', '/')}.py"
        found = self._sources.get(path, "").count(old)
        if found != 1:
            raise Broken(f"an edit of {module} matches {found} times instead of once: {old.strip()[:60]!r}")
        self._sources[path] = self._sources[path].replace(
            old, new.format(**self._versions) if "{libp2p}" in new else new
        )

    def _cut(self, module: str, name: str) -> None:
        path = f"{module.replace('.', '/')}.py"
        scope: list[ast.stmt] = ast.parse(self._sources.get(path, "")).body
        *classes, last = name.split(".")
        for part in classes:
            scope = [
                inner for node in scope if isinstance(node, ast.ClassDef) and node.name == part for inner in node.body
            ]
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [node for node in scope if isinstance(node, kinds) and node.name == last]
        if len(found) != 1:
            raise Broken(f"{module} has {name} {len(found)} times instead of once")
        lines = self._sources[path].splitlines(keepends=True)
        first = min([found[0].lineno, *(one.lineno for one in found[0].decorator_list)])
        self._sources[path] = "".join(lines[: first - 1] + lines[found[0].end_lineno :])

    def _is_package(self, module: str) -> bool:
        return f"{module.replace('.', '/')}/__init__.py" in self._sources

    def _is_module(self, module: str) -> bool:
        return f"{module.replace('.', '/')}.py" in self._sources

    def _add(self, module: str, name: str = "") -> None:
        """Add a module, or a name of a package, and what it imports."""
        if name and (self._is_module(f"{module}.{name}") or self._is_package(f"{module}.{name}")):
            module, name = f"{module}.{name}", ""
        if self._is_package(module):
            wanted = self._wanted.setdefault(module, set())
            if name and name not in wanted:
                wanted.add(name)
                if module in WHOLE_INITS:
                    self._add_imports(f"{module.replace('.', '/')}/__init__.py", module)
                else:
                    self._add(*self._origin(module, name))
            return
        if not self._is_module(module):
            raise Broken(f"there is no module {module} in the wheels of {LOCK}")
        if module not in self._needed:
            self._needed.add(module)
            self._add_imports(f"{module.replace('.', '/')}.py", module.rpartition(".")[0])

    def _add_imports(self, path: str, package: str) -> None:
        for base, taken in imports(self._sources[path], package):
            if base.partition(".")[0] in PACKAGES:
                self._add(base, taken)

    def _origin(self, package: str, name: str) -> tuple[str, str]:
        """Return the module from which a package's `__init__` takes a name, and the name."""
        for base, taken in imports(self._sources[f"{package.replace('.', '/')}/__init__.py"], package):
            if taken == name:
                return base, name
        raise Broken(f"{package}/__init__.py imports no {name}")

    def _init(self, package: str) -> str:
        path = f"{package.replace('.', '/')}/__init__.py"
        if package in WHOLE_INITS:
            return renamed(self._sources[path], path)
        origins = sorted(self._origin(package, name) for name in self._wanted.get(package, ()))
        lines = [f"from {new_name(base)} import {name} as {name}\n" for base, name in origins]
        return "".join(lines)


def imports(text: str, package: str) -> Iterator[tuple[str, str]]:
    """Return (module, name) for all that a module imports when it runs. `package`: the one that it is in."""
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "Multiaddr" if alias.name == "multiaddr" else "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, alias.name) for alias in node.names)


def renamed(text: str, path: str) -> str:
    """Return a module's text with its import lines rewritten. Raises `Broken` for one that would need more."""
    text = re.sub(r"(?m)^(\s*)from libp2p(?=[. ])", rf"\1from {NAME}", text)
    text = re.sub(rf"(?m)^(\s*)from ({'|'.join(PACKAGES[1:])})(?=[. ])", rf"\1from {NAME}.\2", text)
    text = re.sub(r"(?m)^(\s*)import libp2p\.([\w.]+) as ", rf"\1import {NAME}.\2 as ", text)
    text = re.sub(r"(?m)^(\s*)import multiaddr$", rf"\1from {NAME} import multiaddr", text)
    for base, _ in imports(text, "."):
        if base.partition(".")[0] in PACKAGES:
            raise Broken(f"{path} imports {base} by a line that is not rewritten")
    return text


def renumbered(new: str) -> str:
    """Return a replacement whose groups begin one later."""
    return re.sub(r"\\(\d)", lambda found: f"\\{int(found[1]) + 1}", new)


def module_of(path: str) -> str:
    """Return the module, or package, that a file holds."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def placed(path: str) -> str:
    """Return a file's place in the bundle: libp2p's own at the top, the others as packages in it."""
    return path.removeprefix("libp2p/")


def new_name(module: str) -> str:
    """Return the name of a module in the bundle."""
    return NAME + module.removeprefix("libp2p") if module.startswith("libp2p") else f"{NAME}.{module}"


def main() -> None:
    """Make the bundle in the folder of this file; print where it is."""
    try:
        target = ensure(Path(__file__).parent)
    except Broken as error:
        raise SystemExit(str(error)) from None
    files = [path for path in target.rglob("*.py") if path.stat().st_size]
    size = sum(path.stat().st_size for path in files)
    print(f"{target}: {len(files)} modules, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
