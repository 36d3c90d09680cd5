"""The HTTPS key and its certificates: pinning, renewal, and refusal of another key."""

import datetime
import json
import ssl
import stat

import pytest
from cryptography import x509

from echo2.p2p.errors import LocalNetworkFault
from echo2.p2p.https import certificate
from echo2.p2p.https.certificate import CERTIFICATE_LIFE, RENEW_BEFORE
from echo2.p2p.identity import generate_key, write_key
from tests.support import paths
from tests.support.https import NOW, shown

VECTORS = json.loads((paths.VECTORS / "https.json").read_text())


def test_a_renewed_certificate_under_the_same_key_has_the_same_pin():
    one = shown()
    anew = certificate.certificate(one.key, "another name", NOW + CERTIFICATE_LIFE)
    assert anew != one.certificate.read_bytes()
    assert certificate.pin_of(anew) == one.pin
    assert certificate.pin_of(shown("stranger").certificate.read_bytes()) != one.pin


def test_the_pin_is_sha256_of_the_public_key_info_as_other_programs_compute_it():
    vector = VECTORS["pin"]  # openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256
    assert certificate.pin_of(vector["certificate"].encode()).hex() == vector["sha256"]


def test_the_key_file_is_the_owners_alone_and_the_certificate_lasts_two_years():
    one = shown()
    assert stat.S_IMODE(one.key.stat().st_mode) == 0o600
    loaded = x509.load_pem_x509_certificate(one.certificate.read_bytes())
    assert loaded.not_valid_before_utc < NOW < loaded.not_valid_after_utc == NOW + CERTIFICATE_LIFE


@pytest.mark.parametrize(
    ("when", "good"),
    [
        (NOW, True),
        (NOW + CERTIFICATE_LIFE - RENEW_BEFORE - datetime.timedelta(hours=1), True),
        (NOW + CERTIFICATE_LIFE - RENEW_BEFORE, False),
    ],
)
def test_a_certificate_serves_until_it_is_near_its_end(when, good):
    one = shown()
    assert certificate.serves(one.certificate.read_bytes(), one.key, when) is good


def test_a_certificate_of_another_key_or_of_none_does_not_serve():
    one, other = shown(), shown("stranger")
    assert not certificate.serves(other.certificate.read_bytes(), one.key, NOW)
    assert not certificate.serves(b"-----BEGIN CERTIFICATE-----", one.key, NOW)
    with pytest.raises(LocalNetworkFault, match="damaged: remove it"):
        certificate.pin_of(b"nothing")


def test_a_key_under_a_passphrase_serves_only_with_it(tmp_path):
    key, pem = tmp_path / "key.pem", tmp_path / "crt.pem"
    certificate.make_key(key, "secret")
    pem.write_bytes(certificate.certificate(key, "name", NOW, "secret"))
    assert certificate.server_context(pem, key, "secret").minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(LocalNetworkFault, match="cannot be used for HTTPS"):
        certificate.server_context(pem, key, "other")


def test_a_key_of_another_kind_is_refused(tmp_path):
    write_key(tmp_path / "key.pem", generate_key())
    with pytest.raises(LocalNetworkFault, match="no P-256 key"):
        certificate.certificate(tmp_path / "key.pem", "name", NOW)
