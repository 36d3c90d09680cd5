"""The engine on a server: an honest one gives what the run's rule says, and each false one a sentence. The server here
is a small one of aiohttp over a bigram table (tests/support/table_server.py); vLLM's own is in test_real_server."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.plays import direct
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.engine import EngineError, EngineUnusable
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.engines.server.engine import ServerEngine
from echo2.engines.server.http_client import HttpClient
from echo2.engines.server.variables import VARIABLE
from echo2.runtime.child import ChildDied, ChildError
from echo2.weights.errors import BadSnapshot, WrongBase
from tests.support import table_models
from tests.support.bigram import BigramEngine, random_table, write_table
from tests.support.table_models import TableModel
from tests.support.table_server import TableServer
from tests.support.tiny_model import TEXT, job


@pytest.fixture
def server() -> Iterator[TableServer]:
    with TableServer(TEXT.size).running() as server:
        yield server


@pytest.fixture
def client(server: TableServer) -> Iterator[HttpClient]:
    client = HttpClient(server.address, patience=20)
    yield client
    client.close()


@pytest.fixture
def model(tmp_path: Path) -> TableModel:
    return table_models.make(tmp_path / "model")


@pytest.fixture
def engine(client: HttpClient, model: TableModel) -> ServerEngine:
    engine = ServerEngine(client, "float32")
    engine.load(model.folder, model.rolling)
    return engine


def reference(model: TableModel) -> BigramEngine:
    engine = BigramEngine()
    engine.load(model.folder, model.rolling)
    return engine


@pytest.mark.slow
def test_its_groups_are_those_of_the_rule_before_and_after_a_step(engine: ServerEngine, model: TableModel) -> None:
    jobs = [job(index, samples=8, limit=12, task=task) for index in range(3) for task in ("reverse", "guess")]
    here = reference(model)
    for root in (model.old.root, model.new.root):
        ours, theirs = direct.generate_all(engine, jobs), direct.generate_all(here, jobs)
        assert [[one.tokens for one in group] for group in ours] == [[one.tokens for one in group] for group in theirs]
        for group, other in zip(ours, theirs, strict=True):
            for one, same in zip(group, other, strict=True):
                assert one.logprobs == pytest.approx(same.logprobs, abs=1e-5)
        if root == model.old.root:
            assert engine.step_by(model.payload, model.new.root, 1).root == model.new.root
            here.load(model.folder, model.rolling)
    assert engine.step_to(model.old.root).ahead == [model.new.root]
    with pytest.raises(WrongBase):
        engine.step_to(bytes(32))


@pytest.mark.slow
def test_each_of_several_ends_ends_an_answer_of_the_server(engine: ServerEngine, model: TableModel) -> None:
    others = (20, 21, 40)
    asked = [
        msgspec.structs.replace(job(index, samples=16, limit=60), single_turn=True, other_ends=others)
        for index in range(4)
    ]
    ended = set[int]()
    here = direct.generate_all(reference(model), asked)
    for group, other in zip(direct.generate_all(engine, asked), here, strict=True):
        assert [one.tokens for one in group] == [one.tokens for one in other]
        ended |= {one.tokens[-1] for one in group if len(one.tokens) < 60}
    assert ended == {TEXT.eos, *others}


def test_rows_are_as_many_as_the_server_computes_at_once(engine: ServerEngine) -> None:
    assert engine.rows.limit == 24
    for ticket in range(4):
        engine.begin(ticket, job(ticket, samples=8, limit=4))
    assert (engine.rows.running, engine.rows.waiting) == (24, 8)
    for ticket in range(4):
        engine.cancel(ticket)
    assert engine.rows.running == 0


def test_a_server_that_claims_endless_room_gets_no_endless_rows(
    client: HttpClient, server: TableServer, model: TableModel
) -> None:
    """A number beyond 64 bits could not even be told to the node: the engine's process ended."""
    server.settings["scheduler_config"]["max_num_seqs"] = 10**30
    engine = ServerEngine(client, "float32")
    engine.load(model.folder, model.rolling)
    assert engine.rows.limit == 4096
    assert msgspec.msgpack.encode(engine.rows)


def test_it_does_not_score_and_says_which_engine_does(engine: ServerEngine) -> None:
    with pytest.raises(EngineError, match="does not score: use the engine transformers"):
        engine.score(job(0, samples=0), [])


FALSE_ANSWERS = {
    "other tokens": "does not follow the run's sampling rule",
    "no seeds": "does not follow the run's sampling rule",
    "fewer log-probabilities": "log-probabilities for",
    "log-probabilities of other tokens": "log-probabilities are of other tokens",
    "no alternatives": "tells no alternatives of its tokens",
    "one alternative twice": "tells no alternatives of its tokens",
    "NaN": "not finite",
    "no versions": "computed with the weights of no name",
    "errors": "an illegal memory access",
    "no JSON": "502 Bad Gateway",
}


@pytest.mark.parametrize(("fault", "sentence"), FALSE_ANSWERS.items(), ids=FALSE_ANSWERS.keys())
def test_a_false_answer_ends_its_group_with_a_sentence(
    fault: str, sentence: str, engine: ServerEngine, server: TableServer, model: TableModel
) -> None:
    server.fault = fault
    with pytest.raises(EngineError, match=sentence):
        direct.generate(engine, job(1, samples=1, limit=12))
    server.fault = ""
    asked = job(2, samples=4, limit=6)
    assert [one.tokens for one in direct.generate(engine, asked)] == [
        one.tokens for one in direct.generate(reference(model), asked)
    ]


@pytest.mark.parametrize("fault", ["errors", "other tokens"])
def test_a_server_that_fails_again_and_again_ends_the_process(
    fault: str, engine: ServerEngine, server: TableServer
) -> None:
    server.fault = fault
    for ticket in range(7):
        with pytest.raises(EngineError):
            direct.generate(engine, job(ticket, samples=1, limit=12))
    with pytest.raises(ProgramLost, match="8 requests in a row failed, the last one so: "):
        direct.generate(engine, job(7, samples=1, limit=12))


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_server_that_is_gone_ends_the_process(fault: str, server: TableServer, model: TableModel) -> None:
    client = HttpClient(server.address, patience=2)
    engine = ServerEngine(client, "float32")
    engine.load(model.folder, model.rolling)
    server.fault = fault
    with pytest.raises(ProgramLost, match="did not answer within 2 s" if fault == "hangs" else "cannot be reached"):
        direct.generate(engine, job(1, samples=4))
    client.close()


FALSE_CHANGES = {
    "old weights": "still computes with the weights from before the change",
    "old version": "names the weights .*, not .* after they were sent",
    "a cache that others hold": "did not drop its cached prompts: let no other program use it",
}


@pytest.mark.parametrize(("fault", "sentence"), FALSE_CHANGES.items(), ids=FALSE_CHANGES.keys())
def test_a_change_of_weights_that_did_not_take_effect_is_noticed(
    fault: str, sentence: str, engine: ServerEngine, server: TableServer, model: TableModel
) -> None:
    server.fault = fault
    with pytest.raises(EngineError, match=sentence):
        engine.step_by(model.payload, model.new.root, 1)
    with pytest.raises(EngineError, match="call load first"):
        engine.begin(1, job(1))
    server.fault = ""
    assert engine.load(model.folder, model.rolling).root == model.new.root


def test_weights_that_the_server_has_no_room_for_are_refused(
    engine: ServerEngine, server: TableServer, model: TableModel
) -> None:
    server.fault = "no room"
    with pytest.raises(BadSnapshot, match=r"cannot take these weights: .* with 500: .*CUDA out of memory"):
        engine.step_by(model.payload, model.new.root, 1)


def test_weights_of_another_model_are_refused(engine: ServerEngine, model: TableModel, tmp_path: Path) -> None:
    small = write_table(tmp_path / "small", random_table(1))
    with pytest.raises(BadSnapshot, match="there is no table"):
        engine.load(model.folder, small.path)


def test_a_rollout_longer_than_the_server_allows_is_refused(engine: ServerEngine) -> None:
    with pytest.raises(EngineError, match=r"a rollout of 6\d\d tokens is too long: the server's model"):
        engine.begin(1, job(1, limit=600))


def test_a_folder_without_a_vocabulary_is_refused(client: HttpClient, model: TableModel) -> None:
    (model.folder / "config.json").write_text("{}")
    with pytest.raises(EngineError, match=r"has no config\.json with a vocab_size"):
        ServerEngine(client, "float32").load(model.folder, model.rolling)


def versioned(server: TableServer, model: TableModel) -> VersionedEngine:
    engine = VersionedEngine(
        lambda: EngineProcess(env={VARIABLE: server.address}), device="cpu", engine="server", seed=1
    )
    engine.model = model.folder
    engine.current = LoadedVersion(era=0, version=0, root=model.old.root, weights=model.rolling)
    return engine


@pytest.mark.slow
async def test_a_node_whose_server_dies_in_mid_lease_ends_with_the_reason(
    server: TableServer, model: TableModel
) -> None:
    """EngineUnusable ends a node with exit code 80; its leases are given back."""
    engine = versioned(server, model)
    async with engine.shared():
        assert engine.probed.engine_class == "server/float32/cpu"
        assert engine.probed.hardware == f"the server {server.address}"
        assert len(await engine.generate(job(1, samples=4))) == 4
        server.fault = "dies"
        with pytest.raises(ChildDied, match=f"the server {server.address} cannot be reached"):
            await engine.generate(job(2, samples=4))
        with pytest.raises(EngineUnusable, match=f"the server {server.address} cannot be used: .*cannot be reached"):
            await engine.recover()
    await engine.stop()


@pytest.mark.slow
async def test_a_node_whose_server_takes_no_weights_ends_with_the_reason_and_keeps_its_weights(
    server: TableServer, model: TableModel
) -> None:
    """The weights on disk are whole: to fetch them again would not give the server more memory."""
    engine, dropped = versioned(server, model), list[LoadedVersion]()
    engine.on_corrupt = dropped.append
    server.fault = "no room"
    with pytest.raises(EngineUnusable, match=r"cannot load version 0: the server cannot take .*CUDA out of memory"):
        async with engine.shared():
            pass
    assert dropped == []
    await engine.stop()


@pytest.mark.slow
async def test_a_node_whose_server_fails_once_goes_on(server: TableServer, model: TableModel) -> None:
    engine = versioned(server, model)
    async with engine.shared():
        server.fault = "errors"
        with pytest.raises(ChildError, match="an illegal memory access"):
            await engine.generate(job(1, samples=2))
        server.fault = ""
        assert len(await engine.generate(job(1, samples=2))) == 2
    await engine.stop()
