"""What a ZooKeeper URL may say, how a wrong one is refused, and what using it brings into a program."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leasehold
from leasehold.engine.blocking import BlockingRuntime
from leasehold.errors import InvalidInput
from leasehold.model import Key
from leasehold.rules import zookeeper_nodes as nodes
from leasehold.rules.addresses import Address
from leasehold.rules.urls import split
from leasehold.rules.zookeeper_nodes import Header, Kind
from leasehold.stores.open import open_store
from leasehold.wires.clock import system_clock
from leasehold.wires.zookeeper_frames import BadFrame, Frames, read_connect, read_reply
from leasehold.wires.zookeeper_url import ZooKeeperConfig, zookeeper_config
from tests.stores.test_redis_imports import modules_after
from tests.stores.zookeeper_support import fresh
from tests.support import PYTHON, ROOT

PAGE = ROOT / "docs" / "stores" / "zookeeper.md"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("zookeeper://h", ZooKeeperConfig((Address("h", 2181),))),
        ("zookeeper://a:1,b,[::1]:3", ZooKeeperConfig((Address("a", 1), Address("b", 2181), Address("::1", 3)))),
        ("zookeeper://h/apps/billing/", ZooKeeperConfig((Address("h", 2181),), chroot="/apps/billing")),
        ("zookeeper://h/a%20b", ZooKeeperConfig((Address("h", 2181),), chroot="/a b")),
        (
            "zookeeper://u:p%40ss@h",
            ZooKeeperConfig((Address("h", 2181),), user="u", password="p@ss"),  # noqa: S106  of nobody
        ),
        (
            "zookeepers://h?ca=/a.pem&cert=/c&key=/k",
            ZooKeeperConfig((Address("h", 2281),), tls=True, ca="/a.pem", cert="/c", key="/k"),
        ),
    ],
)
def test_a_good_url_says_this(url: str, said: ZooKeeperConfig) -> None:
    assert zookeeper_config(split(url), url) == said
    assert "p@ss" not in repr(said)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("zookeeper://", "each host must read"),
        ("zookeeper://h,", "each host must read"),
        ("zookeeper://h:x", "a port must be"),
        ("zookeeper://h:70000", "a port must be"),
        ("zookeeper://u@h", "a user and a password"),
        ("zookeeper://:p@h", "a user and a password"),
        ("zookeeper://h//a", "without empty steps"),
        ("zookeeper://h/a/../b", "without empty steps"),
        ("zookeeper://h/%00", "without empty steps"),
        ("zookeeper://h/%ff", "not UTF-8"),
        ("zookeeper://h?pool=3", "this store has: ca, cert, key"),
        ("zookeeper://h?ca=/a", "need TLS"),
        ("zookeepers://h?cert=/a", "need each other"),
        ("zookeepers://h?ca=/a&ca=/b", "unknown or repeated"),
    ],
)
def test_a_wrong_url_is_refused_with_the_remedy(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        open_store(url, timeout=1.0, colour=BlockingRuntime(system_clock()))


def test_an_error_never_shows_the_password() -> None:
    with pytest.raises(InvalidInput) as told:
        leasehold.connect("zookeeper://user:hunter2@h:x")
    assert "hunter2" not in str(told.value)


def test_a_helper_process_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidInput, match="helper: a helper process cannot keep a ZooKeeper session"):
        leasehold.connect(fresh(), helper=True)


@given(st.text(min_size=1, max_size=50), st.text(max_size=10))
def test_every_key_has_a_node_of_its_own_that_zookeeper_takes(family: str, member: str) -> None:
    try:
        family.encode(), member.encode()
    except UnicodeEncodeError:
        return  # no key has lone surrogates
    key = Key(family, member)
    bucket, _, name = nodes.record_path(key).rpartition("/")
    assert bucket == nodes.bucket_path(family) in nodes.bucket_paths()
    assert name not in {".", ".."}
    assert re.fullmatch(r"[\x20-\x7e]+", name)
    assert name.startswith(nodes.prefix(family))
    assert nodes.key_of(name) == key


@given(st.sampled_from(Kind), st.integers(1, 10**9), st.integers(0, 2**62), st.binary(max_size=100))
def test_a_node_says_what_was_written(kind: Kind, millis: int, born: int, value: bytes) -> None:
    header = Header(kind, None if kind is Kind.LASTING else millis / 1000, born, "abc")
    assert nodes.read(nodes.write(header, value)) == (header, value)


@given(st.binary(max_size=60))
def test_what_somebody_else_wrote_is_not_read(data: bytes) -> None:
    assert nodes.read(data) is None


@given(st.lists(st.binary(max_size=30), max_size=5), st.integers(1, 7))
def test_frames_come_out_whole_however_they_were_cut(bodies: list[bytes], cut: int) -> None:
    sent = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    frames, found = Frames(), []
    for start in range(0, len(sent), cut):
        found += frames.feed(sent[start : start + cut])
    assert found == bodies


def test_what_is_no_frame_is_refused() -> None:
    for call in (lambda: Frames().feed(b"HTTP/1.1"), lambda: read_connect(b"x"), lambda: read_reply(b"x")):
        with pytest.raises(BadFrame):
            call()


def test_a_blocking_program_loads_neither_asyncio_nor_kazoo_s_client() -> None:
    program = "import leasehold\nwith leasehold.connect({!r}) as locks: locks.acquire('job').release()"
    loaded = modules_after(program.format(fresh()))
    assert {"leasehold.stores.zookeeper", "kazoo.protocol.serialization"} <= loaded
    assert not {"asyncio", "kazoo.client", "leasehold.wires.zookeeper_looped"} & loaded


def test_a_program_that_does_not_use_it_loads_nothing_of_it() -> None:
    loaded = modules_after("import leasehold\nleasehold.connect('memory://').close()")
    assert not {"kazoo", "leasehold.stores.zookeeper"} & loaded


def test_the_example_of_the_page_runs() -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) == 1
    program = examples[0].replace("zookeeper://localhost:2181", fresh())
    done = subprocess.run(
        [PYTHON, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert re.fullmatch(r"holding invoice/42 with token \d+\n", done.stdout)
