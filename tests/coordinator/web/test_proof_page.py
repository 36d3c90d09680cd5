"""The proof of a lease as a page: readable without a script, and checked by a client that knows RFC 6962."""

import base64
import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.accounts.head_signing import LedgerHeads
from coordinator.database import Database
from coordinator.run.sealing import Sealer
from coordinator.run.setup import Run
from coordinator.web import page, proof_page
from coordinator.web.proof_page import LeaseProof
from coordinator.web.site import application
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
    html = proof_page.rendered(proof)
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
    html = proof_page.rendered(proof._replace(told="<script>alert(1)</script>")).decode()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
