"""Who a client is, for its share of the service: its key, else its address.

An address is the peer's own. Only where the peer is a proxy of ours does ``X-Forwarded-For`` count, and
of it the right-most address that is no proxy: what stands left of that, the client wrote itself.
``Forwarded`` is not read: a proxy that writes one of the two passes on the other as it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from xlt_serve.errors import UsageError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

HOPS = 16
"""Proxies that a request may have come through; what they say of more is not read."""

LONGEST = 64
"""Characters of an address with its port; no more are looked at, or remembered."""

REMEMBERED = 4096
"""Addresses whose text was read lately."""


def client_of(
    holder: str, peer: str, headers: Iterable[tuple[bytes, bytes]], proxies: tuple[Network, ...]
) -> str:
    """``holder``: which of the keys the request has, "" if none. The names of keys have a blank in
    them, those of addresses have not."""
    if holder:
        return holder
    if not proxies or not _is_proxy(peer, proxies):
        return group(peer)
    listed = b",".join(value for name, value in headers if name == b"x-forwarded-for")
    nearest = peer
    for part in reversed(listed.decode("latin-1").rsplit(",", HOPS)[-HOPS:]):
        told = without_port(part.strip()[:LONGEST])
        if address(told) is None:
            break  # "unknown", or nonsense: all that is sure is who said it
        nearest = told
        if not _is_proxy(told, proxies):
            break
    return group(nearest)


def owner(peer: str, proxies: tuple[Network, ...]) -> str:
    """Whose a connection is, before it has said anything. "": nobody's, as a proxy has those of many."""
    return "" if proxies and _is_proxy(peer, proxies) else group(peer)


@lru_cache(REMEMBERED)
def group(text: str) -> str:
    """The clients that count as one: an IPv4 address, or a network of IPv6 (/64), of which one machine
    may have every address. What is no address is "", one client."""
    found = address(text)
    if not isinstance(found, IPv6Address):
        return "" if found is None else str(found)
    return str(IPv6Network((int(found) >> 64 << 64, 64)))


@lru_cache(REMEMBERED)
def address(text: str) -> Address | None:
    try:
        found = ip_address(text.partition("%")[0])  # the name of an interface may follow
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def without_port(text: str) -> str:
    """ "192.0.2.1:80" and "[2001:db8::1]:80", as some proxies write."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def is_loopback(text: str) -> bool:
    """Also of the one name that always means it (RFC 6761)."""
    found = address(text)
    return text == "localhost" or (found is not None and found.is_loopback)


def networks(parts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks: "192.0.2.1", "2001:db8::/32"."""
    out: list[Network] = []
    for part in parts:
        try:
            out.append(ip_network(part))
        except ValueError as error:
            raise UsageError(
                f"XLT_PROXIES={part[:50]}",
                f"is no address and no network ({error})",
                "give e.g. 192.0.2.1,10.0.0.0/8",
            ) from None
    return tuple(out)


@lru_cache(REMEMBERED)
def _is_proxy(text: str, proxies: tuple[Network, ...]) -> bool:
    found = address(text)
    return found is not None and any(found in network for network in proxies)
