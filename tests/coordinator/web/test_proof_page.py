"""The proof of a lease as a page: readable without a script, and checked by a client that knows RFC 6962.

Its script is run by Node where that is installed, with as much of a browser as it uses."""

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.database.database import Database
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.run.setup import Run
from echo2.coordinator.web import page, proof_page
from echo2.coordinator.web.proof_page import LeaseProof
from echo2.coordinator.web.site import application
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.group_world import World
from tests.support.run_folders import make_run, write_model
from tests.support.site_visits import Drawn, Visit, fetched

BUDGET = 150_000


class ProvedRun(FixedRun):
    """A page over the ledger of a run. `leases`: accepted ones, the last of them behind the head."""

    def __init__(self, run: Run, leases: list[str]) -> None:
        super().__init__(pictures.BUSY)
        self.run, self.leases = run, leases

    def lease_proof(self, lease: str) -> LeaseProof | None:
        with Database.read(self.run.folder.database) as database:
            return proof_page.lease_proof(database, lease, self.run.chain)


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProvedRun]:
    folder = tmp_path_factory.mktemp("proofs")
    run = make_run(folder / "run", write_model(folder / "model"))
    world = World(run.folder.path, batch_groups=50)
    leases = [world.accepted().id.hex() for _ in range(9)]
    sealer, service = Sealer(run), world.group_service
    LedgerHeads(service.database, service.ledger, run.id, sealer, sealer.note, every=1).sign(world.now)
    leases.append(world.accepted().id.hex())
    yield ProvedRun(run, leases)
    world.close()


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def part(html: str, name: str) -> str:
    """Return the text of the element with an id."""
    return Drawn(html.split(f'id="{name}">', 1)[1].split("</pre>", 1)[0]).words.strip()


async def test_each_page_leads_from_its_entry_to_the_root_of_the_checkpoint(visit: Visit, proved: ProvedRun) -> None:
    session = await visit(application(proved))
    for lease in proved.leases[:9]:
        status, headers, body = await fetched(session, f"/ledger/proof/{lease}")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        html = body.decode()
        canonical = bytes.fromhex(part(html, "canonical"))
        assert bytes.fromhex(lease) in canonical
        assert sha256(bytes.fromhex(part(html, "previous")) + canonical).hex() == part(html, "hash")
        digest = sha256(b"\0" + canonical)
        steps = Drawn(html.split('id="path">', 1)[1].split("</ol>", 1)[0])
        sides = [attrs["data-side"] for tag, attrs in steps.tags if tag == "li"]
        siblings = [bytes.fromhex(word) for word in steps.words.replace("left", " ").replace("right", " ").split()]
        for side, sibling in zip(sides, siblings, strict=True):
            digest = sha256(b"\1" + (sibling + digest if side == "left" else digest + sibling))
        assert digest.hex() == part(html, "root")
        assert base64.b64decode(part(html, "note").splitlines()[2]) == digest
        assert "echo2-node receipts verify" in Drawn(html).words


async def test_what_has_no_entry_under_a_head_is_not_there_and_says_what_helps(visit: Visit, proved: ProvedRun) -> None:
    session = await visit(application(proved))
    for lease in (proved.leases[9], "0" * 32):
        status, _, body = await fetched(session, f"/ledger/proof/{lease}")
        assert status == 404
        assert b"`echo2-node receipts fetch` brings the proof" in body
    for path in ("A" * 32, "0" * 31, "x" * 32):
        assert (await fetched(session, f"/ledger/proof/{path}"))[0] == 404


def test_the_page_and_all_it_loads_stay_small_and_nothing_comes_from_elsewhere(proved: ProvedRun) -> None:
    proof = proved.lease_proof(proved.leases[0])
    assert proof is not None
    html = proof_page.render_page(proof)
    loaded = Drawn(html.decode()).loaded()
    assert [address.partition("?")[0] for address in loaded] == [
        "../../static/proof.js",
        "../../static/icon.svg",
        "../../static/page.css",
    ]
    size = len(gzip.compress(html)) + sum(
        len(gzip.compress(page.asset(Path(one.partition("?")[0]).name))) for one in loaded
    )
    assert size < BUDGET


def test_words_of_an_entry_are_text_and_no_markup(proved: ProvedRun) -> None:
    proof = proved.lease_proof(proved.leases[0])
    assert proof is not None
    html = proof_page.render_page(proof._replace(told="<script>alert(1)</script>")).decode()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


BROWSER = """
const vm = require("node:vm");
const { page, secure, script, messages } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
Object.defineProperty(globalThis, "crypto", { value: secure ? require("node:crypto").webcrypto : undefined });
const outcome = { textContent: "" }, checks = [];
const list = { append: (row) => checks.push(row.textContent) };
const code = (textContent) => () => ({ textContent });
const steps = page.path.map(([side, digest]) => ({ dataset: { side }, querySelector: code(digest) }));
globalThis.document = {
  getElementById: (id) => ({ outcome, checks: list })[id] || { textContent: page[id] },
  querySelectorAll: (what) => (what === "#path li" ? steps : page.keys.map((key) => ({ textContent: key }))),
  createElement: () => ({}),
};
vm.runInThisContext(script);
const digests = messages.map((one) => Buffer.from(ownSha256(Buffer.from(one, "hex"))).toString("hex"));
process.on("exit", () => console.log(JSON.stringify({ outcome: outcome.textContent, checks, digests })));
"""
"""Runs the page's script with the elements that it reads. `secure`: as over https, where WebCrypto is there."""
BY_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def in_a_browser(shown: dict[str, Any], *, secure: bool, messages: tuple[bytes, ...] = ()) -> dict[str, Any]:
    """Return what the script of the page says of what is shown, and its own SHA-256 of messages."""
    script = page.asset(Path("proof.js").name).decode()
    asked = {"page": shown, "secure": secure, "script": script, "messages": [one.hex() for one in messages]}
    done = subprocess.run(["node", "-e", BROWSER], input=json.dumps(asked).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def shown_by(proved: ProvedRun, lease: str) -> dict[str, Any]:
    """Return the elements of the page of a lease that its script reads."""
    proof = proved.lease_proof(lease)
    assert proof is not None
    html = proof_page.render_page(proof).decode()
    steps = Drawn(html.split('id="path">', 1)[1].split("</ol>", 1)[0])
    sides = [attrs["data-side"] for tag, attrs in steps.tags if tag == "li"]
    siblings = steps.words.replace("left", " ").replace("right", " ").split()
    keys = [one.split("</pre>")[0] for one in html.split("<pre data-key>")[1:]]
    texts = {name: part(html, name) for name in ("told", "canonical", "previous", "hash", "root")} | {"lease": lease}
    note = html.split('id="note">', 1)[1].split("</pre>", 1)[0]
    return texts | {"note": note, "path": list(zip(sides, siblings, strict=True)), "keys": keys}


@BY_NODE
@pytest.mark.slow
def test_over_plain_http_the_script_computes_the_hashes_and_says_that_the_signature_is_left(proved: ProvedRun) -> None:
    messages = (*(b"a" * size for size in range(131)), bytes(range(256)) * 400)
    for lease in proved.leases[:9:4]:
        told = in_a_browser(shown_by(proved, lease), secure=False, messages=messages)
        assert told["digests"] == [sha256(one).hex() for one in messages]
        assert told["outcome"].startswith("Hashes and path are right. The signature was not checked here")
        assert "`echo2-node receipts verify` does it offline" in told["outcome"]
        assert [one.split(":")[0] for one in told["checks"]] == ["right"] * 4 + ["not checked"]


@BY_NODE
def test_over_https_the_script_checks_the_signature_as_well(proved: ProvedRun) -> None:
    shown = shown_by(proved, proved.leases[4])
    told = in_a_browser(shown, secure=True)
    assert told["outcome"] == "Checked by this browser: entry, path, root and signature are right."
    strangers = in_a_browser(shown | {"keys": ["11" * 32]}, secure=True)
    assert strangers["outcome"].startswith("WRONG")
    assert strangers["checks"][4] == "WRONG: the ledger's key signed the checkpoint"


@BY_NODE
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("where", ["canonical", "previous", "root", "path", "note"])
def test_a_changed_byte_of_a_proof_is_called_wrong(where: str, secure: bool, proved: ProvedRun) -> None:
    shown = shown_by(proved, proved.leases[4])
    if where == "path":
        side, digest = shown["path"][0]
        shown["path"][0] = (side, flipped(digest))
    elif where == "note":
        origin, size, root, *others = shown["note"].split("\n")
        other = base64.b64encode(bytes.fromhex(flipped(base64.b64decode(root).hex()))).decode()
        shown["note"] = "\n".join([origin, size, other, *others])
    else:
        shown[where] = flipped(shown[where])
    assert in_a_browser(shown, secure=secure)["outcome"].startswith("WRONG")


@BY_NODE
def test_words_that_are_not_those_of_the_proved_bytes_are_called_wrong(proved: ProvedRun) -> None:
    shown, other = (shown_by(proved, lease) for lease in proved.leases[3:5])
    entry = json.loads(shown["told"])
    more = json.dumps(entry | {"postings": [[account, 9 * amount] for account, amount in entry["postings"]]})
    for said in ({"told": more}, {"told": other["told"]}, {"lease": other["lease"]}):
        told = in_a_browser(shown | said, secure=True)
        assert told["outcome"].startswith("WRONG"), said
        assert told["checks"][0] == "WRONG: lease and words of the entry are those of its bytes"


def flipped(digits: str) -> str:
    """Return hexadecimal digits, the last of which is another one."""
    return digits[:-1] + format(int(digits[-1], 16) ^ 1, "x")
