"""The settings of everything that listens: libp2p, HTTPS and the page."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from echo2.coordinator.settings.config_section import LIVE, Section, Texts
from echo2.p2p.limits.party import TrustedProxies
from echo2.p2p.multiaddr import address_of, is_open_port


def _check_listen(addresses: Texts, key: str = "listen") -> None:
    for address in addresses:
        if not address_of(address).is_listening:
            raise ValueError(f"{key} has {address!r}: write /ip4/0.0.0.0/tcp/4310 or the like")


def _check_dialled(section: "NetworkSection") -> None:
    """Check the addresses that nodes dial, and those of relays: a host alone is none."""
    for address in section.advertise:
        if address_of(address).port is None:
            raise ValueError(f"advertise has {address!r}: write /dns4/run.example.org/tcp/4310 or the like")
    for address in section.relays:
        if address_of(address).port is None or not address_of(address).peer:
            raise ValueError(f"relays has {address!r}: write all that `echo2-coord relay` prints, from /dns to its id")


def _check_ports(addresses: Texts, key: str) -> None:
    """Check that nodes dial the ports of these addresses; of port 0 the system chooses a free one."""
    for address in addresses:
        port = address_of(address).port
        if port and not is_open_port(port):
            raise ValueError(f"{key} has {address!r}: nodes dial port 443, and ports from 1024 on, and no others")


class NetworkSection(Section):
    """Connections with nodes over libp2p. Addresses are multiaddresses."""

    listen: Annotated[
        Texts, Field(min_length=1, max_length=16, description="Addresses to listen on. Port 0: any free one.")
    ] = ("/ip4/0.0.0.0/tcp/4310", "/ip6/::/tcp/4310")
    advertise: Annotated[
        Texts,
        Field(max_length=16, description="Addresses that nodes dial, if not those listened on: a public name."),
    ] = ()
    mdns: Annotated[
        bool, Field(description="Announce the run on private networks, by multicast DNS: true or false.")
    ] = True
    uplink: Annotated[
        float | None,
        LIVE,
        Field(
            gt=0,
            le=1e7,
            description="Limit of payloads sent, Mbit/s; nodes that the plan assigns to the coordinator go first. "
            "Unset: no limit, and the plan assumes 100.",
        ),
    ] = None
    downlink: Annotated[
        float | None, LIVE, Field(gt=0, le=1e7, description="Limit of payloads received, Mbit/s. Unset: no limit.")
    ] = None
    plan: Annotated[
        bool, Field(description="Plan which node sends new versions to which: true, or false for random peers.")
    ] = True
    relay: Annotated[
        bool, Field(description="Relay connections between peers that cannot reach each other: true or false.")
    ] = True
    relay_rate: Annotated[
        float,
        LIVE,
        Field(gt=0, le=1e7, description="Limit of relayed data, all connections and both directions together, Mbit/s."),
    ] = 20.0
    relays: Annotated[
        Texts,
        LIVE,
        Field(max_length=16, description="Addresses of relays to use, if nodes cannot dial the coordinator directly."),
    ] = ()
    connections: Annotated[
        int,
        LIVE,
        Field(ge=1, le=32768, description="Most connections with peers over libp2p; each takes an open file."),
    ] = 1024
    subnet_connections: Annotated[
        int, LIVE, Field(ge=1, le=32768, description="Most of these connections per public IPv4 /24 or IPv6 /48.")
    ] = 32
    trusted_proxies: Annotated[
        Texts,
        Field(
            max_length=64,
            description="Addresses and networks of TCP proxies before libp2p, HTTPS or the page, as 10.0.0.7 or "
            "10.0.0.0/24. Each connection from these must begin with a PROXY header (version 1 or 2), which names its "
            "client; from others it is refused. With the page X-Forwarded-For serves as well.",
        ),
    ] = ()
    private_parties: Annotated[
        Literal["one", "connection"],
        Field(
            description='Limits at private addresses: "one" has all of them share one set where the run has public '
            'addresses, but for nodes with accepted work, since a proxy may hide anybody; "connection" gives each '
            "connection its own, for a LAN."
        ),
    ] = "one"
    former_listen: Annotated[
        Texts,
        Field(
            max_length=16,
            description="Addresses on which the network identity before `keys rotate network` tells nodes where the "
            "coordinator is now, for 30 days: those of `listen` before it. Empty: none.",
        ),
    ] = ()

    @model_validator(mode="after")
    def _are_addresses(self) -> Self:
        _check_listen(self.listen)
        _check_listen(self.former_listen, "former_listen")
        try:
            TrustedProxies(self.trusted_proxies)
        except ValueError as error:
            raise ValueError(f"trusted_proxies: {error}") from None
        _check_dialled(self)
        _check_ports(self.advertise or self.listen, "advertise" if self.advertise else "listen")
        _check_ports(self.relays, "relays")
        return self


class HttpsSection(Section):
    """The HTTPS server, for nodes whose network lets only HTTPS out. The invite pins its key."""

    listen: Annotated[
        Texts,
        Field(max_length=16, description="Addresses to listen on, /ip4/HOST/tcp/PORT. An empty list: no HTTPS."),
    ] = ("/ip4/0.0.0.0/tcp/4311", "/ip6/::/tcp/4311")
    advertise: Annotated[
        Texts,
        Field(
            max_length=8,
            description="Addresses that nodes use, such as /dns4/coord.example/tcp/443/https. Empty: the hosts of "
            "network.advertise with the port of https.listen, else the addresses of https.listen.",
        ),
    ] = ()
    connections: Annotated[
        int, LIVE, Field(ge=1, le=32768, description="Most connections over HTTPS; each takes an open file.")
    ] = 1024
    address_connections: Annotated[
        int, LIVE, Field(ge=1, le=32768, description="Most of these connections per IPv4 address or IPv6 /64.")
    ] = 128

    former_listen: Annotated[
        Texts, Field(max_length=16, description="The same over HTTPS, under the same HTTPS key. Empty: none.")
    ] = ()

    @model_validator(mode="after")
    def _are_addresses(self) -> Self:
        _check_listen(self.listen)
        _check_listen(self.former_listen, "former_listen")
        _check_ports(self.advertise or self.listen, "advertise" if self.advertise else "listen")
        for address in self.advertise:
            if address_of(address).https_url is None:
                raise ValueError(f"advertise has {address!r}: write /dns4/coord.example/tcp/443/https or the like")
        return self


class WebSection(Section):
    """The page, the API and /metrics, over HTTP."""

    host: Annotated[
        str, Field(min_length=1, max_length=200, description="Address to bind. 0.0.0.0: every interface.")
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="TCP port. 0: any free one.")] = 8420
    operator_listen: Annotated[
        str,
        Field(
            max_length=400,
            description="Address of the operator's own page: a loopback address with a port (0: any free one), or the "
            "path of a Unix socket, as in /run/user/1000/first.sock. Empty: there is none.",
        ),
    ] = "127.0.0.1:0"
    names: Annotated[
        Texts,
        Field(
            max_length=16,
            description="Public names of the page, such as run.example.org. Requests for any other name but localhost "
            "are refused; under these, scripts of other web sites may read the page.",
        ),
    ] = ()
    examples: Annotated[
        int,
        LIVE,
        Field(
            ge=0,
            le=20,
            description="Groups of which the public page shows the prompt, the best and the worst answer, those "
            "accepted last of versions that are leased no more. 0: none, as prompts may be private.",
        ),
    ] = 0
    connections: Annotated[
        int, LIVE, Field(ge=1, le=32768, description="Most connections with the page; each takes an open file.")
    ] = 256
    address_connections: Annotated[
        int,
        LIVE,
        Field(
            ge=1,
            le=32768,
            description="Most of these connections per public IPv4 address or IPv6 /64. Private addresses have no "
            "such limit.",
        ),
    ] = 32

    @model_validator(mode="after")
    def _are_names(self) -> Self:
        for name in self.names:
            if not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", name):
                raise ValueError(f"names has {name!r}: write a host name alone, such as run.example.org")
        return self

    @model_validator(mode="after")
    def _is_for_the_operator_alone(self) -> Self:
        if isinstance(place := self.operator_place, tuple) and (
            not ip_address(place[0]).is_loopback or not 0 <= place[1] <= 65535
        ):
            raise ValueError(
                f"operator_listen is {self.operator_listen!r}, which others can reach: write 127.0.0.1:8421, or the "
                "path of a Unix socket"
            )
        return self

    @property
    def operator_place(self) -> tuple[str, int] | Path | None:
        """The loopback address and port, or the Unix socket, of the operator's page; None: it has none. Raises
        `ValueError`."""
        text = self.operator_listen.strip()
        if not text or "/" in text:
            return Path(text) if text else None
        host, _, port = text.rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host.strip("[]")
        try:
            ip_address(host)
            return host, int(port)
        except ValueError:
            raise ValueError(
                f"operator_listen is {text!r}: write 127.0.0.1:8421, or the path of a Unix socket"
            ) from None
