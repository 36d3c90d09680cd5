"""The coordinator's HTTPS identity: the key and certificate in the run folder, and the addresses in invites.

1. `init` generates the key once. A start renews a certificate near its end under the same key, so invites that pin
   the key stay valid.
2. A run created before HTTPS existed has neither file; its next start with HTTPS generates both. Its older invites pin
   no key and lead over libp2p only. A certificate without its key is an error, never repaired silently: invites pin the
   lost key.
"""

import datetime
from collections.abc import Sequence

import structlog

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.p2p.https import certificate
from echo2.p2p.local_addresses import dialable, machine_addresses
from echo2.p2p.multiaddr import MOST_ADDRESSES, address_of, route_of, through
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing

MOST_HTTPS = 4
"""HTTPS addresses in an invite or a Head, of `MOST` in all."""

log = structlog.get_logger("coordinator")


def prepare(folder: RunFolder, name: str, now: int, secret: str | None) -> None:
    """Generate the key and the certificate if missing, and renew a certificate near its end. `name`: the certificate's
    subject, for people. `now`: milliseconds. `secret`: passphrase of the key file. Raises `LocalFault`."""
    at = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC)
    current = folder.https_certificate.read_bytes() if folder.https_certificate.exists() else None
    if not folder.https_key.exists():
        if current is not None:
            raise LocalFault(
                f"no key file at {folder.https_key}: put it back from your backup; or remove "
                f"{folder.https_certificate}: a new key is then generated, and nodes need a new invite for HTTPS"
            )
        certificate.make_key(folder.https_key, secret)
    if current is None or not certificate.serves(current, folder.https_key, at, secret):
        with writing(folder.https_certificate) as file:
            file.write(certificate.certificate(folder.https_key, name, at, secret))
        if current is not None:
            log.info("https certificate renewed, under the same key")


def pin(folder: RunFolder, config: CoordinatorConfig) -> bytes | None:
    """Return the pin of the HTTPS key for invites, 32 bytes; None: the run has no HTTPS. Raises `LocalFault`."""
    if not config.https.listen or not folder.https_certificate.exists():
        return None
    return certificate.pin_of(folder.https_certificate.read_bytes())


def reachable_addresses(config: CoordinatorConfig, peer: str, listening: Sequence[str] = ()) -> list[str]:
    """Return the addresses at which nodes reach the coordinator: over libp2p, through relays, then over HTTPS.
    `listening`: the actual listening addresses; empty: take those of the settings."""
    section = config.network
    direct = section.advertise or [one for one in listening if route_of(one) == "direct"] or section.listen
    relayed = [one for one in listening if route_of(one) == "relay"]
    relayed += [through(relay, peer) for relay in section.relays]
    https, own = list[str](), machine_addresses()
    if config.https.listen:
        ours = [one for one in listening if route_of(one) == "https"] or [f"{one}/https" for one in config.https.listen]
        https = dialable(config.https.advertise or _elsewhere(config.network.advertise, ours[0]) or ours, peer, own)
    return [*dialable([*direct, *relayed], peer, own)[: MOST_ADDRESSES - len(https[:MOST_HTTPS])], *https[:MOST_HTTPS]]


def ports_are_chosen_at_start(config: CoordinatorConfig) -> bool:
    """Tell whether an address of the invite has port 0: then only the running coordinator knows the invite."""
    return any(address_of(one).port == 0 for one in reachable_addresses(config, ""))


def _elsewhere(advertised: Sequence[str], ours: str) -> list[str]:
    """Return HTTPS addresses at the hosts of `advertised`, with the port of `ours`."""
    port = address_of(ours).port
    hosts = dict.fromkeys((parsed.kind, parsed.host) for parsed in map(address_of, advertised) if parsed.host)
    return [f"/{kind}/{host}/tcp/{port}/https" for kind, host in hosts]
