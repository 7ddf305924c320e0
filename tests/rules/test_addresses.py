"""Where a server listens, read from a URL's hosts."""

from __future__ import annotations

import pytest

from leasehold.errors import InvalidInput
from leasehold.rules.addresses import Address, read_address


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("host", Address("host", 7), "host:7"),
        ("host:1", Address("host", 1), "host:1"),
        ("[::1]:2", Address("::1", 2), "[::1]:2"),
        ("[::1]", Address("::1", 7), "[::1]:7"),
        ("a%2Db:65535", Address("a-b", 65535), "a-b:65535"),
    ],
)
def test_a_host_is_read_with_its_port_or_the_usual_one(text: str, address: Address, shown: str) -> None:
    found = read_address(text, 7, "url")
    assert (found, str(found)) == (address, shown)


@pytest.mark.parametrize("text", ["", ":1", "::1", "[host", "h:0", "h:65536", "h:x", "h:²", "%FF", " h"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="url: "):
        read_address(text, 7, "url")
