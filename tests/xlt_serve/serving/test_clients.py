"""Who a client is: by key, by address, by what a proxy of ours says; never by what it says itself."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from xlt_serve.errors import UsageError
from xlt_serve.serving.clients import HOPS, address, client_of, group, is_loopback, networks

PROXIES = networks(["10.0.0.0/8", "2001:db8:aaaa::/48", "127.0.0.1"])
PROXY = st.sampled_from(["10.1.2.3", "2001:db8:aaaa::7", "127.0.0.1", "::ffff:10.9.9.9"])
ADDRESS = st.ip_addresses().map(str)
WRITTEN = st.sampled_from(["{}", " {} ", "{}:4711", "[{}]:4711", "[{}]", "\t{}"])


def forwarded(*values: str | bytes) -> list[tuple[bytes, bytes]]:
    made = [value if isinstance(value, bytes) else value.encode("latin-1") for value in values]
    return [(b"host", b"x"), *((b"x-forwarded-for", value) for value in made)]


def is_proxy(text: str) -> bool:
    found = address(text)
    assert found is not None
    return any(found in network for network in PROXIES)


@given(ADDRESS, st.lists(st.binary(max_size=60)))
def test_without_proxies_headers_say_nothing(peer: str, values: list[bytes]) -> None:
    assert client_of("", peer, forwarded(*values), ()) == group(peer)


@given(ADDRESS, st.lists(st.binary(max_size=60)))
def test_nor_do_those_of_a_peer_that_is_no_proxy(peer: str, values: list[bytes]) -> None:
    assume(not is_proxy(peer))
    assert client_of("", peer, forwarded(*values), PROXIES) == group(peer)


@given(PROXY, st.lists(PROXY, max_size=HOPS - 1), ADDRESS, WRITTEN, st.lists(st.binary()))
@example("10.1.2.3", [], "192.0.2.1", "{}", [b"198.51.100.7", b"10.0.0.1, 10.0.0.2"])
def test_what_a_client_writes_before_its_proxies_changes_nothing(
    peer: str, between: list[str], real: str, form: str, forged: list[bytes]
) -> None:
    assume(not is_proxy(real) and (":" not in real or form not in ("{}:4711",)))
    told = ", ".join([form.format(real), *between])
    assert client_of("", peer, forwarded(*forged, told), PROXIES) == group(real)


@given(PROXY, st.lists(PROXY, min_size=1, max_size=HOPS), st.integers(1, HOPS))
def test_several_headers_are_one_list(peer: str, chain: list[str], cut: int) -> None:
    chain = ["192.0.2.1", *chain][:HOPS]
    whole = client_of("", peer, forwarded(", ".join(chain)), PROXIES)
    assert whole == client_of("", peer, forwarded(*chain), PROXIES) == "192.0.2.1"


def test_of_proxies_alone_the_furthest_counts_and_of_nonsense_whoever_told_it() -> None:
    def client(told: str) -> str:
        return client_of("", "10.0.0.1", forwarded(told), PROXIES)

    assert client("10.0.0.3, 10.0.0.2") == "10.0.0.3"
    assert client("192.0.2.1, unknown, 10.0.0.2") == "10.0.0.2"
    assert client("192.0.2.1, _hidden") == "10.0.0.1"
    assert client("") == "10.0.0.1"
    assert client(", ".join(["192.0.2.1"] + ["10.0.0.2"] * HOPS)) == "10.0.0.2"  # too far to look


@given(st.one_of(st.just(""), ADDRESS, st.text()), st.lists(st.binary()), st.text(max_size=9))
def test_it_takes_anything_and_a_name_is_short(peer: str, values: list[bytes], key: str) -> None:
    found = client_of(key, peer, forwarded(*values), PROXIES)
    assert found == key if key else len(found) <= 43
    assert " " not in found or key


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_ipv6_clients_count_by_their_network(prefix: int, one: int, other: int) -> None:
    assume(prefix)  # below it: IPv4 addresses in IPv6's clothes
    same = [group(str(IPv6Address(prefix << 64 | low))) for low in (one, other)]
    assert same[0] == same[1] == f"{IPv6Address(prefix << 64)}/64"
    assert group(str(IPv6Address((prefix ^ 1) << 64 | one))) != same[0]


@given(st.ip_addresses(v=4).map(str))
def test_ipv4_in_ipv6_is_ipv4(text: str) -> None:
    assert group(f"::ffff:{text}") == group(text) == text


def test_a_key_counts_before_any_address() -> None:
    assert client_of("key 1", "10.0.0.1", forwarded("192.0.2.1"), PROXIES) == "key 1"


def test_loopback() -> None:
    for local in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost"):
        assert is_loopback(local)
    for other in ("0.0.0.0", "::", "192.0.2.1", "", "localhost.example", "testserver"):
        assert not is_loopback(other)


@pytest.mark.parametrize("wrong", ["here", "10.0.0.1/8", "10.0.0.0/33", "1.2.3", "*"])
def test_proxies_are_addresses_and_networks(wrong: str) -> None:
    assert networks(["192.0.2.1"])[0].num_addresses == 1
    assert ip_address("2001:db8::1") in networks(["2001:db8::/32"])[0]
    with pytest.raises(UsageError, match=r"XLT_PROXIES=.*is no address"):
        networks([wrong])
