"""What a Redis URL may say, and how a wrong one is refused."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.engine.blocking import BlockingRuntime
from leasehold.errors import InvalidInput
from leasehold.rules.addresses import Address
from leasehold.rules.urls import split
from leasehold.stores.open import open_store
from leasehold.wires.clock import system_clock
from leasehold.wires.redis_url import RedisConfig, redis_config


def config(url: str) -> RedisConfig:
    return redis_config(split(url), url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost", RedisConfig("single", (Address("localhost", 6379),))),
        ("redis://h:1/3", RedisConfig("single", (Address("h", 1),), db=3)),
        ("redis://:p%40ss@h", RedisConfig("single", (Address("h", 6379),), password="p@ss")),  # noqa: S106  of nobody
        ("redis://ann@h", RedisConfig("single", (Address("h", 6379),), user="ann")),
        ("redis://[::1]:7", RedisConfig("single", (Address("::1", 7),))),
        ("redis://[::1]", RedisConfig("single", (Address("::1", 6379),))),
        ("redis://h?pool=3&wait=1", RedisConfig("single", (Address("h", 6379),), pool=3, wait=1)),
        ("rediss://h?ca=/a/b.pem", RedisConfig("single", (Address("h", 6379),), tls=True, ca="/a/b.pem")),
        (
            "rediss://h?cert=/c&key=/k",
            RedisConfig("single", (Address("h", 6379),), tls=True, cert="/c", key="/k"),
        ),
        (
            "redis+sentinel://u:p@a,b:1/main/2?sentinel_login=yes&tls=yes",
            RedisConfig(
                "sentinel",
                (Address("a", 26379), Address("b", 1)),
                master="main",
                db=2,
                user="u",
                password="p",  # noqa: S106  of nobody
                tls=True,
                sentinel_login=True,
            ),
        ),
        ("redis+cluster://a:1,[::2]:3", RedisConfig("cluster", (Address("a", 1), Address("::2", 3)))),
    ],
)
def test_a_good_url_says_this(url, said) -> None:
    assert config(url) == said


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://", "each host must read"),
        ("redis://a,b", "one server has one host"),
        ("redis://h:0", "a port must be"),
        ("redis://h:65536", "a port must be"),
        ("redis://h:x", "a port must be"),
        ("redis://h:１", "a port must be"),
        ("redis://h/x", "the number of a database"),
        ("redis://h/1/2", "the number of a database"),
        ("redis://h/99999", "the number of a database"),
        ("redis+cluster://h/1", "only database 0"),
        ("redis+cluster://a,,b", "each host must read"),
        ("redis+sentinel://a,b", "must name the master"),
        ("redis://h?pool=0", "pool must be a whole number from 1 to 1024"),
        ("redis://h?pool=many", "pool must be"),
        ("redis://h?wait=-1", "wait must be a whole number from 0 to 16"),
        ("redis://h?pool=1&pool=2", "unknown or repeated"),
        ("redis://h?tls=yes", "unknown or repeated"),
        ("redis+cluster://h?tls=maybe", "tls must be yes or no"),
        ("redis://h?ca=/x", "need TLS"),
        ("rediss://h?cert=/x", "cert and key need each other"),
        ("redis://h%ff", "not UTF-8"),
        ("redis://::1", "each host must read"),
    ],
)
def test_a_bad_url_is_refused_with_the_remedy(url, words) -> None:
    with pytest.raises(InvalidInput, match="url: ") as caught:
        config(url)
    assert words in str(caught.value)


@pytest.mark.parametrize("url", ["redis://u:hunter2@h:x", "redis://h?password=hunter2", "redis://u:hunter2@h/x?a=b"])
def test_no_error_shows_a_password(url) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url, timeout=1.0, colour=BlockingRuntime(system_clock()))
    assert "hunter2" not in str(caught.value)


def test_a_configuration_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(config("redis://u:hunter2@h"))


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_any_text_after_the_scheme_is_read_or_refused(text) -> None:
    try:
        parts = urlsplit("redis+sentinel://" + text)
        parts.netloc.encode()
    except ValueError:
        return
    found = read(parts)
    assert found is None or all(0 < address.port < 65536 for address in found.hosts)


def read(parts: SplitResult) -> RedisConfig | None:
    """What it says, or None for bad input; anything else it raises is a bug."""
    with suppress(InvalidInput):
        return redis_config(parts, "shown")
    return None
