"""Questions about verdicts cost the coordinator the same, whatever they name: a stranger may ask about 256 leases."""

import os

from protocol.leases import VerdictsRequest
from tests.support.group_world import ALICE, World


def test_a_question_about_256_leases_that_are_none_is_one_statement(world: World) -> None:
    statements: list[str] = []
    world.group_service.database._connection.set_trace_callback(statements.append)
    names = [os.urandom(16) for _ in range(256)]
    answer = world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=names))
    assert answer.unknown == names
    assert answer.receipts == [None] * 256
    assert len(statements) <= 2, f"{len(statements)} statements for one question, at most 2"


def test_the_confirmation_of_256_receipts_that_are_none_is_one_statement(world: World) -> None:
    statements: list[str] = []
    world.group_service.database._connection.set_trace_callback(statements.append)
    world.group_service.submissions.verdicts(
        ALICE, VerdictsRequest(leases=[], confirmed=[os.urandom(16) for _ in range(256)])
    )
    assert len(statements) <= 4, f"{len(statements)} statements for one confirmation, at most 4"
