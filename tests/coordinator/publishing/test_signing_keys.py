"""The publisher's keys: which documents are signed by the present ones, and which former keys are accepted."""

import pytest

from echo2.coordinator.publishing.signing_keys import Signing
from echo2.p2p.envelope import seal
from echo2.p2p.errors import Malformed
from echo2.p2p.identity import generate_key, public_bytes

POLICY, CHANNEL, FORMER = generate_key(), generate_key(), generate_key()
RUN = bytes(32)
SIGNING = Signing(RUN, POLICY, CHANNEL, 2, former=frozenset({public_bytes(FORMER)}))


def test_only_the_present_key_of_a_role_signed_a_document() -> None:
    for key, by_policy, by_channel in ((POLICY, True, False), (CHANNEL, False, True), (FORMER, False, False)):
        sealed = seal("head", RUN, b"\xa7payload", key)
        assert SIGNING.by_policy(sealed, "head") == by_policy
        assert SIGNING.by_channel(sealed, "head") == by_channel


def test_a_document_that_does_not_decode_is_malformed() -> None:
    with pytest.raises(Malformed):
        SIGNING.by_policy(b"\xc1", "head")


def test_former_keys_are_accepted_beside_the_present_one() -> None:
    assert SIGNING.policies == {public_bytes(POLICY), public_bytes(FORMER)}
    assert SIGNING.channels == {public_bytes(CHANNEL), public_bytes(FORMER)}
