"""The settings of everything that listens: libp2p, HTTPS and the page."""

import re
from typing import Annotated, Self

from pydantic import Field, model_validator

from echo2.coordinator.settings.config_section import Section, Texts
from echo2.p2p.multiaddr import address_of


def _check_listen(addresses: Texts, key: str = "listen") -> None:
    for address in addresses:
        if not address_of(address).is_listening:
            raise ValueError(f"{key} has {address!r}: write /ip4/0.0.0.0/tcp/4310 or the like")


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
        Field(
            gt=0,
            le=1e7,
            description="Limit of payloads sent, Mbit/s; nodes that the plan assigns to the coordinator go first. "
            "Unset: no limit, and the plan assumes 100.",
        ),
    ] = None
    downlink: Annotated[
        float | None, Field(gt=0, le=1e7, description="Limit of payloads received, Mbit/s. Unset: no limit.")
    ] = None
    plan: Annotated[
        bool, Field(description="Plan which node sends new versions to which: true, or false for random peers.")
    ] = True
    relay: Annotated[
        bool, Field(description="Relay connections between peers that cannot reach each other: true or false.")
    ] = True
    relay_rate: Annotated[
        float,
        Field(gt=0, le=1e7, description="Limit of relayed data, all connections and both directions together, Mbit/s."),
    ] = 20.0
    relays: Annotated[
        Texts,
        Field(max_length=16, description="Addresses of relays to use, if nodes cannot dial the coordinator directly."),
    ] = ()
    connections: Annotated[
        int, Field(ge=1, le=32768, description="Most connections with peers over libp2p; each takes an open file.")
    ] = 1024
    subnet_connections: Annotated[
        int, Field(ge=1, le=32768, description="Most of these connections per public IPv4 /24 or IPv6 /48.")
    ] = 32
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
        int, Field(ge=1, le=32768, description="Most connections over HTTPS; each takes an open file.")
    ] = 1024
    address_connections: Annotated[
        int, Field(ge=1, le=32768, description="Most of these connections per IPv4 address or IPv6 /64.")
    ] = 128

    former_listen: Annotated[
        Texts, Field(max_length=16, description="The same over HTTPS, under the same HTTPS key. Empty: none.")
    ] = ()

    @model_validator(mode="after")
    def _are_addresses(self) -> Self:
        _check_listen(self.listen)
        _check_listen(self.former_listen, "former_listen")
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
    names: Annotated[
        Texts,
        Field(
            max_length=16,
            description="Public names of the page, such as run.example.org. Requests for any other name but localhost "
            "are refused; under these, scripts of other web sites may read the page.",
        ),
    ] = ()
    connections: Annotated[
        int, Field(ge=1, le=32768, description="Most connections with the page; each takes an open file.")
    ] = 256
    address_connections: Annotated[
        int,
        Field(
            ge=1,
            le=32768,
            description="Most of these connections per public IPv4 address or IPv6 /64. Loopback and private "
            "addresses, such as a reverse proxy's, have no such limit.",
        ),
    ] = 32

    @model_validator(mode="after")
    def _are_names(self) -> Self:
        for name in self.names:
            if not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", name):
                raise ValueError(f"names has {name!r}: write a host name alone, such as run.example.org")
        return self
