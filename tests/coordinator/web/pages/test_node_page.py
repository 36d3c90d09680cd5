"""The page of a node: its work, proofs, badge and feed; who is named; what the API describes of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.views import NodeView
from echo2.coordinator.verdicts.draw_record import LEARNED_STEPS, record_draw
from echo2.coordinator.verdicts.replay_buffer import DrawnGroup
from echo2.coordinator.web import openapi
from echo2.coordinator.web.pages import node_page, page_export
from echo2.coordinator.web.site import application
from echo2.p2p.identity import peer_id
from echo2.runtime.errors import LocalFault
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.group_world import ALICE, BOB, HELLO, World, group
from tests.support.run_folders import make_run, write_model
from tests.support.site_visits import Drawn, Visit, fetched

NODE = pictures.NODES[1]
HOSTILE = '"><script>alert(1)</script>'
ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path)
    yield opened
    opened.close()


def test_a_node_is_shown_with_its_groups_and_the_steps_that_learned_from_it(world: World) -> None:
    database = world.group_service.database
    for node, name in ((ALICE, "ann"), (BOB, "bob")):
        world.group_service.registry.register(node, msgspec.structs.replace(HELLO, name=name), None, world.now)
    leases = [world.lease(node) for node in (ALICE, ALICE, BOB)]
    for lease, node in zip(leases, (ALICE, ALICE, BOB), strict=True):
        world.submit(group(lease), node)
    world.decide_all()
    record_draw(database, [DrawnGroup(lease.id, 0) for lease in leases], 1, 1, world.now, lambda *_: None)
    view = node_page.read_node(database, peer_id(ALICE), (), world.now)
    assert view is not None
    assert {one.lease for one in view.groups} == {lease.id.hex() for lease in leases[:2]}
    assert [(one.step, one.groups) for one in view.learned] == [(1, 2)]
    assert node_page.find_node(database, "bob") == node_page.find_node(database, peer_id(BOB)) == peer_id(BOB)
    assert node_page.find_node(database, "nobody") is None
    assert node_page.read_node(database, peer_id(bytes(31) + b"\1"), (), world.now) is None


def test_steps_made_again_are_recorded_once_and_old_ones_are_forgotten(world: World) -> None:
    database = world.group_service.database
    lease = world.lease()
    for step in (1, 2, 2, LEARNED_STEPS + 1):
        record_draw(database, [DrawnGroup(lease.id, 0)], 1, step, world.now, lambda *_: None)
    assert database.all("SELECT step, groups FROM learned ORDER BY step") == [(2, 1), (LEARNED_STEPS + 1, 1)]


async def test_a_page_has_figures_reasons_and_proofs(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    status, headers, body = await fetched(session, f"/nodes/{NODE.id}")
    drawn = Drawn(body.decode())
    words = " ".join(drawn.words.split())
    assert (status, headers["Cache-Control"]) == (200, "public, max-age=10")
    for wanted in ("Känguru im Keller", "171", "Received after the lease had expired.", "Against the step before"):
        assert wanted in words, wanted
    links = [attrs.get("href") for tag, attrs in drawn.tags if tag == "a"]
    assert f"../ledger/proof/{0:032x}" in links
    assert f"../ledger/proof/{7:032x}" not in links, "it was refused"
    status, _, body = await fetched(session, f"/nodes/{NODE.id}", **{"If-None-Match": headers["Etag"]})
    assert (status, body) == (304, b"")


async def test_a_name_leads_to_the_permanent_address_while_one_node_has_it(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    async with session.get("/nodes/mac%20mini", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, pictures.NODES[2].id)
    for path in ("/nodes/nobody", f"/nodes/{'1' * 52}", "/api/v1/nodes/nobody"):
        assert (await fetched(session, path))[0] == 404, path


async def test_badge_and_feed_are_well_formed_also_with_a_hostile_name(visit: Visit) -> None:
    node = msgspec.structs.replace(NODE, name=HOSTILE)
    state = msgspec.structs.replace(pictures.BUSY, nodes=[node], name=HOSTILE, page="https://run.example.org")
    session = await visit(application(FixedRun(state)))
    _, headers, badge = await fetched(session, f"/nodes/{node.id}.svg")
    assert headers["Content-Type"] == "image/svg+xml"
    drawn = ElementTree.fromstring(badge)
    assert [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")] == [HOSTILE, f"{HOSTILE}: 171 groups"]
    assert not list(drawn.iter("{http://www.w3.org/2000/svg}script"))
    feed = ElementTree.fromstring((await fetched(session, f"/nodes/{node.id}.atom"))[2])
    titles = [one.findtext(f"{ATOM}title") for one in feed.iter(f"{ATOM}entry")]
    assert titles[:2] == ["Version 26: 4 groups accepted", "Version 25: 3 groups accepted, 1 refused (late)"]
    assert len(titles) == 12, "of the oldest version older groups are cut off"
    ids = [one.findtext(f"{ATOM}id") for one in feed.iter(f"{ATOM}entry")]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\d-]+T[\d:]+Z", one.text or "") for one in feed.iter(f"{ATOM}updated"))


async def test_every_route_of_the_api_is_described_and_answers(visit: Visit) -> None:
    app = application(FixedRun(pictures.PAID))
    described = msgspec.json.decode(openapi.document())["paths"]
    there = {resource.canonical for resource in app.router.resources() if resource.canonical.startswith("/api/v1/")}
    assert there == set(described)
    session = await visit(app)
    for path, ways in described.items():
        status, headers, _ = await fetched(session, path.replace("{peer}", NODE.id))
        (kind,) = ways["get"]["responses"]["200"]["content"]
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, kind), path
    one = (await fetched(session, f"/api/v1/nodes/{NODE.id}"))[2]
    assert msgspec.json.decode(one, type=NodeView).node == pictures.PAID.nodes[1]


def test_a_copy_for_a_web_host_links_its_own_files_alone() -> None:
    views = [pictures.made_by(node) for node in pictures.PAID.nodes]
    files = page_export.files_of(pictures.PAID, views)
    assert {"index.html", "nodes.html", f"nodes/{NODE.id}.html", "api/v1/run.json", "static/page.css"} <= set(files)
    for name, body in files.items():
        if not name.endswith(".html"):
            continue
        drawn = Drawn(body.decode())
        assert not [tag for tag, _ in drawn.tags if tag == "script"]
        assert 'http-equiv="Content-Security-Policy"' in body.decode()
        for _, attrs in drawn.tags:
            address = (attrs.get("href") or attrs.get("src") or "").partition("?")[0].partition("#")[0]
            if address and "://" not in address:
                parts = [*name.split("/")[:-1], *address.removeprefix("./").split("/")]
                while ".." in parts:
                    at = parts.index("..")
                    del parts[at - 1 : at + 1]
                assert "/".join(parts) in files, f"{name} links {address}"


def test_a_copy_goes_into_no_folder_that_a_link_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    Database.open(run.folder.database).close()
    run.folder.last_state.write_bytes(msgspec.json.encode(msgspec.structs.replace(pictures.FINISHED, run=run.id.hex())))
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "index.html").write_text("mine")
    (tmp_path / ".copy.partial").symlink_to(kept)
    with pytest.raises(LocalFault, match="cannot write"):
        page_export.export(run.folder.path, tmp_path / "copy", 0)
    assert [(one.name, one.read_text()) for one in kept.iterdir()] == [("index.html", "mine")]
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    page_export.export(run.folder.path, Path("."), 0)
    assert (here / "index.html").is_file()
