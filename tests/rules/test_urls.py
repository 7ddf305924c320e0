"""A URL's parts, whatever the hosts look like."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from leasehold.rules.urls import split


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "memory://name",
        "sqlite:///var/lib/a.db?synchronous=normal",
        "redis://user:p%40ss@host:1/3?pool=2",
        "redis://host?pool=2",
        "redis://[::1]:7/0",
        "postgresql://a,b:2/db",
        "REDIS://Host/0",
        "not a url",
        "redis:host",
    ],
)
def test_ordinary_ones_are_read_as_python_reads_them(url: str) -> None:
    assert split(url) == urlsplit(url)


def test_several_hosts_with_brackets_stay_as_they_are() -> None:
    parts = split("redis+cluster://u:p@a:1,[::2]:3/0?pool=2")
    assert (parts.scheme, parts.netloc, parts.path, parts.query) == (
        "redis+cluster",
        "u:p@a:1,[::2]:3",
        "/0",
        "pool=2",
    )


@pytest.mark.parametrize("url", ["memory://[", "redis://[::1", "redis://a]"])
def test_a_bracket_that_is_not_closed_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="bracket"):
        split(url)
