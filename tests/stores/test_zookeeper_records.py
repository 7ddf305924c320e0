"""What lies in ZooKeeper: witnesses, sessions, what lasts and what ends, and what is left behind."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from typing import Any

import pytest
from kazoo.protocol.serialization import SetACL

import leasehold
from leasehold.engine import events
from leasehold.errors import InvalidInput, PermissionDenied, StoreDamaged, StoreUnavailable
from leasehold.model import KEEP, Conflict, Key, Record, Renewal
from leasehold.rules import zookeeper_nodes as names
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance.zookeeper_worlds import plain_wire
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import ZooKeeperServer
from leasehold.wires import zookeeper_frames as frames
from leasehold.wires.colour import drive
from tests.servers import zookeeper
from tests.stores.redis_support import KEY, driven, key
from tests.stores.zookeeper_support import (
    asked,
    behind,
    chroot_of,
    fresh,
    fresh_chroot,
    records,
    with_short_sessions,
    witnesses,
)
from tests.support import eventually

COLOURS = pytest.mark.parametrize("colour", ["blocking", "asyncio"])


def path_of(url: str, of: Key = KEY) -> str:
    return chroot_of(url) + names.record_path(of)


# Versions that restart at 0.


@COLOURS
def test_a_late_release_does_not_remove_the_next_holders_node_although_versions_restart(colour: str) -> None:
    url = fresh()
    with driven(url, colour) as store:
        first = store.grant()
        assert store.swap(KEY, first, None, None) == first
        second = store.grant()
        assert (first.tag.version, second.tag.version) == (1, 1)
        assert isinstance(store.swap(KEY, first, None, None), Conflict)
        assert isinstance(store.swap(KEY, first, b"late", 30.0), Conflict)
        assert store.load(KEY).revision == second.revision > first.revision


def test_the_same_release_by_version_alone_removes_it() -> None:
    """The control: what a version proves is nothing."""
    path = f"{fresh_chroot(zookeeper())}/lock"
    create = frames.Create(path, b"", frames.OPEN_ACL_UNSAFE, 0)
    asked(zookeeper(), create, frames.Delete(path, 0), create)
    assert asked(zookeeper(), frames.Delete(path, 0), frames.Exists(path, False))[1] == frames.Refused(frames.NO_NODE)


def test_the_revision_is_the_czxid_of_the_node_and_makes_the_token() -> None:
    url = fresh()
    with driven(url) as store, leasehold.connect(url) as locks:
        made = store.grant()
        (stat,) = records(zookeeper(), url).values()
        assert made.revision == made.born == stat.czxid == stat.mzxid
        assert stat.ephemeralOwner != 0
        lease = locks.acquire("job")
        assert lease.token > made.revision * 256


def test_tokens_grow_over_releases_deletions_and_a_restart_of_the_server() -> None:
    with ZooKeeperServer() as server:
        url, tokens = fresh(server), []
        with leasehold.connect(url) as locks:
            for turn in range(6):
                lease = locks.acquire("job", ttl=30)
                tokens.append(lease.token)
                if turn == 2:
                    server.restart()
                elif turn == 4:
                    server.kill()
                    server.start()
                assert lease.release() is True
    assert all(later > earlier for earlier, later in pairwise(tokens))


@COLOURS
def test_a_record_goes_with_its_witness_and_leaves_nothing(colour: str) -> None:
    url = fresh()
    with driven(url, colour) as store:
        made = [store.grant(key(number)) for number in range(5)]
        assert len(witnesses(zookeeper(), url)) == len(records(zookeeper(), url)) == 5
        changed = store.swap(key(0), made[0], b"other", None)
        assert store.swap(key(0), changed, None, None) == changed
        for record in made[1:]:
            store.swap(record.key, record, None, None)
        assert witnesses(zookeeper(), url) == list(records(zookeeper(), url)) == []


def test_any_text_is_a_node_of_its_own_and_comes_back_as_it_was() -> None:
    texts = ["a/b", "a%2Fb", "a,b", ".", "..", " ", "é\u200b\u0085\ufff0", "\U0001f512", "x" * 1000, "%", "zookeeper"]
    with leasehold.connect(fresh()) as locks:
        for text in texts:
            locks.acquire(text)
        assert {info.scope for info in locks.list()} == set(texts)


def test_a_name_that_is_no_records_is_no_key() -> None:
    for name in ("plain", "%ff,lock", "a/b,lock", "%61,lock"):
        assert names.key_of(name) is None
    for good in (Key("a//name/b", "lock"), Key(",", ","), Key("é", "")):
        assert names.key_of(names.record_path(good).rpartition("/")[2]) == good


# Sessions.


@COLOURS
def test_leases_of_one_ttl_share_a_session_and_others_have_their_own(colour: str) -> None:
    url = fresh()
    with driven(url, colour) as store:
        owners = [store.grant(key(number), ttl).tag.owner for number, ttl in enumerate((10.0, 10.0, 20.0))]
        assert owners[0] == owners[1] != owners[2]
        assert {stat.ephemeralOwner for stat in records(zookeeper(), url).values()} == set(owners)
        assert sorted(session.timeout for session in store.store.sessions()) == [10.0, 20.0]


def test_the_real_ttl_is_what_the_server_negotiates_and_its_limits_are_told() -> None:
    server = with_short_sessions()
    with leasehold.connect(fresh(server)) as locks:
        assert (locks.guarantees.ttl_min, locks.guarantees.ttl_max) == (0.2, 0.5)
        assert locks.acquire("job", ttl=0.3).ttl == 0.5
        with pytest.raises(InvalidInput, match=r"ttl: must be from 0\.2 to 0\.5 seconds"):
            locks.acquire("job", ttl=30)
    with leasehold.connect(fresh()) as locks:
        assert locks.acquire("job", ttl=2.3).ttl == 3.0


def test_a_server_that_grants_less_than_before_is_not_believed() -> None:
    """Servers of one ensemble may be configured unlike each other."""
    with ZooKeeperServer() as server, driven(fresh(server)) as store:
        made = store.grant(ttl=30.0)
        server.stop()
        server._config["maxSessionTimeout"] = 5000
        server._configure()
        server.start()
        with pytest.raises(StoreUnavailable, match="grants sessions of 5 s where 30 s were granted") as told:
            store.touch([(made, 30.0)])
        assert told.value.applied is False


@COLOURS
def test_every_record_of_a_session_is_verified_and_not_only_the_session(colour: str) -> None:
    url = fresh()
    with driven(url, colour) as store:
        made = [store.grant(key(number)) for number in range(3)]
        asked(zookeeper(), frames.Delete(path_of(url, key(1)), frames.ANY))
        answers = store.touch([(record, 30.0) for record in made])
        assert [answer for answer, _ in answers] == [Renewal.RENEWED, Renewal.LOST, Renewal.RENEWED]


@COLOURS
def test_what_lives_in_somebody_elses_session_is_there_and_not_ours_to_keep(colour: str) -> None:
    url = fresh()
    with driven(url, colour) as store, driven(url, colour) as other:
        made = store.grant()
        assert other.touch([(other.load(KEY), 30.0)]) == [(Renewal.HELD, other.load(KEY))]
        assert store.touch([(made, 30.0)])[0][0] is Renewal.RENEWED


@COLOURS
def test_another_ttl_moves_a_record_to_another_session_and_keeps_its_birth(colour: str) -> None:
    with driven(fresh(), colour) as store:
        made = store.grant(ttl=10.0)
        ((answer, moved),) = store.touch([(made, 20.0)])
        assert answer is Renewal.RENEWED
        assert (moved.ttl, moved.born) == (20.0, made.born)
        assert moved.tag.owner != made.tag.owner
        lasting = store.swap(KEY, moved, b"kept", None)
        assert (lasting.ttl, lasting.born, lasting.tag.owner) == (None, made.born, 0)
        assert isinstance(store.swap(KEY, moved, b"late", 10.0), Conflict)


def test_a_lost_session_loses_its_leases_at_once_and_not_those_of_others() -> None:
    url = fresh()
    with driven(url) as store:
        gone, kept = store.grant(key(0), 10.0), store.grant(key(1), 20.0)
        end_session(store, 10.0)
        answers = store.touch([(gone, 10.0), (kept, 20.0)])
        assert answers == [(Renewal.LOST, None), (Renewal.RENEWED, answers[1][1])]
        assert store.grant(key(0), 10.0).revision > gone.revision


def end_session(store: Any, ttl: float) -> None:
    """As an administrator ends it: taken over, and closed."""
    (session,) = [session for session in store.store.sessions() if session.timeout == ttl]
    link = plain_wire(zookeeper()).line()
    drive(link.dial())
    drive(link.exchange(frames.pack_connect(0, ttl, session.id, session.password), 1))
    drive(link.exchange(frames.pack_close(), 1))
    link.close()


@COLOURS
def test_a_program_that_asks_nothing_any_more_holds_nothing_after_its_ttl(colour: str) -> None:
    """A client that pings by itself holds on for as long as its process lives, hung or not."""
    url = fresh()
    with driven(url, colour) as silent, driven(url) as other:
        silent.grant(ttl=1.0)
        eventually(lambda: isinstance(other.swap(KEY, None, b"theirs", 10.0), Record))


@COLOURS
def test_closing_ends_the_sessions_in_which_nothing_lives(colour: str) -> None:
    url = fresh()
    sessions: list[int] = []
    with driven(url, colour) as store:
        made = store.grant()
        sessions = [session.id for session in store.store.sessions()]
        assert sessions[0] in alive()
        store.swap(KEY, made, None, None)
    assert sessions[0] not in alive()


def alive() -> set[int]:
    """The sessions the server knows."""
    lines = zookeeper().word("cons").splitlines()
    return {int(part[6:], 16) for line in lines for part in line.replace("(", ",").split(",") if part[:6] == "sid=0x"}


# What is left behind by a reply that never came.


@COLOURS
def test_the_orphan_of_a_lost_reply_is_found_and_removed_while_its_session_lives_on(colour: str) -> None:
    """The session serves another lease, and would keep the orphan alive for as long as the client runs."""
    with Proxy(zookeeper().host, zookeeper().port) as proxy:
        url, clock = behind(proxy), VirtualClock()
        with driven(url, colour, clock, timeout=1.0) as store, driven(f"{zookeeper().url}{chroot_of(url)}") as other:
            kept = store.grant(key(1))
            proxy.replies.blackhole = True
            with pytest.raises(StoreUnavailable) as told:
                store.swap(KEY, None, b"orphan", 30.0)
            assert told.value.applied is None
            proxy.replies.blackhole = False
            assert other.load(KEY).value == b"orphan"
            owner = other.load(KEY).tag.owner
            for _ in range(2):
                # The control: before its time it is left alone, and the session that holds it lives.
                clock.advance(10.0)
                ((answer, kept),) = store.touch([(kept, 30.0)])
                assert answer is Renewal.RENEWED
                assert other.load(KEY).tag.owner == kept.tag.owner == owner
            clock.advance(12.0)
            assert store.touch([(kept, 30.0)])[0][0] is Renewal.RENEWED
            assert other.load(KEY) is None
            assert other.load(key(1)) is not None


@COLOURS
def test_a_client_that_gave_up_on_an_acquire_removes_what_it_left(colour: str) -> None:
    seen: list[object] = []
    with Proxy(zookeeper().host, zookeeper().port) as proxy:
        url = behind(proxy)
        with (
            leasehold.connect(url, timeout=1.0, observers=[seen.append]) as ada,
            leasehold.connect(f"{zookeeper().url}{chroot_of(url)}") as bob,
        ):
            ada.acquire("kept", ttl=30)
            proxy.replies.blackhole = True
            with pytest.raises(StoreUnavailable):
                ada.acquire("orphan", ttl=30, wait=0)
            assert bob.inspect("orphan") is not None
            proxy.replies.blackhole = False
            proxy.cut()
            assert bob.acquire("orphan", ttl=30, wait=20).held
        assert any(isinstance(event, events.Doubted) for event in seen)


def test_an_overstayed_lease_goes_although_the_client_keeps_others_of_its_ttl() -> None:
    with leasehold.connect(fresh()) as ada:
        ada.acquire("kept", ttl=1)
        short = ada.acquire("short", ttl=1, max_hold=1.0)
        eventually(lambda: ada.inspect("short") is None)
        assert not short.held
        assert ada.inspect("kept") is not None


# What lasts, and what ends by another clock.


@COLOURS
def test_what_lasts_is_a_persistent_node_and_outlives_every_session(colour: str) -> None:
    url = fresh()
    with driven(url, colour) as store:
        store.grant(ttl=None)
    (stat,) = records(zookeeper(), url).values()
    assert stat.ephemeralOwner == 0
    with driven(url, colour) as later:
        found = later.load(KEY)
        assert (found.ttl, found.left) == (None, None)
        assert later.swap(KEY, found, b"changed", None).born == found.born


@COLOURS
def test_what_must_outlast_a_session_ends_by_the_leaders_clock_and_is_collected(colour: str) -> None:
    """A result or a rest period of hours, where a session lasts half a second."""
    server = with_short_sessions()
    url = fresh(server)
    with driven(url, colour) as store:
        made = store.grant(ttl=1.0)
        long = store.grant(key(1), ttl=3600.0)
        (first, second) = records(server, url).values()
        assert (first.ephemeralOwner, second.ephemeralOwner) == (0, 0)
        changed = store.swap(KEY, made, b"noted", KEEP)
        assert 0 < store.load(KEY).left <= 1.0
    with driven(url, colour) as later:
        # The control: it is there while its time lasts, without anybody who keeps it.
        assert later.refused(key(1)).revision == long.revision
        eventually(lambda: later.load(KEY) is None)
        assert later.scan(KEY.family) == []
        assert later.swap(KEY, changed, b"late", 1.0) == Conflict(None)
        assert len(records(server, url)) == 2
        assert later.collect(10) == 1
        assert len(records(server, url)) == 1
        ended = later.grant(ttl=0.6)
        eventually(lambda: isinstance(later.swap(KEY, None, b"next", 0.3), Record))
        assert later.load(KEY) is None or later.load(KEY).born > ended.born


def test_what_outlasts_a_session_is_extended_by_being_touched() -> None:
    with driven(fresh(with_short_sessions())) as store:
        made = store.grant(ttl=60.0)
        ((answer, fresher),) = store.touch([(made, 90.0)])
        assert (answer, fresher.ttl, fresher.born) == (Renewal.RENEWED, 90.0, made.born)
        assert store.load(KEY).left > 60.0
        assert store.touch([(made, 90.0)])[0][0] is Renewal.LOST


# Places and rights.


def test_a_chroot_is_a_place_of_its_own() -> None:
    with leasehold.connect(fresh()) as here, leasehold.connect(fresh()) as there:
        assert here.acquire("job").held
        assert there.acquire("job").held


def test_a_missing_chroot_is_an_error_that_names_it() -> None:
    with pytest.raises(StoreUnavailable, match="the chroot '/nowhere/at/all' does not exist; create it") as told:
        leasehold.connect(f"{zookeeper().url}/nowhere/at/all")
    assert told.value.applied is False


@COLOURS
def test_nodes_of_a_user_are_closed_to_everybody_else(colour: str) -> None:
    server = zookeeper()
    chroot = fresh_chroot(server)
    with driven(f"{server.url_for('app', 'se:cr/et')}{chroot}", colour) as store:
        store.grant()
        assert asked(server, frames.GetACL(f"{chroot}/leasehold")) == [frames.Refused(frames.NO_AUTH)]
    for wrong in (server.url, server.url_for("app", "wrong"), server.url_for("other", "se:cr/et")):
        with pytest.raises(PermissionDenied, match=r"NoAuth to '/test-.*leasehold'; .* log in as the user") as told:
            leasehold.connect(f"{wrong}{chroot}")
        assert "se:cr/et" not in str(told.value)
    with driven(f"{server.url_for('app', 'se:cr/et')}{chroot}", colour) as again:
        assert again.load(KEY) is not None


def test_rights_that_go_while_a_client_runs_are_told() -> None:
    url = fresh()
    with driven(url) as store:
        store.grant()
        path = chroot_of(url) + names.bucket_path(key(1).family)
        readonly = [frames.ACL(1, frames.OPEN_ACL_UNSAFE[0].id)]
        asked(zookeeper(), SetACL(path, readonly, -1))
        with pytest.raises(PermissionDenied, match="NoAuth"):
            store.swap(key(1), None, b"x", 30.0)


def test_a_node_that_somebody_else_wrote_grants_nothing() -> None:
    url = fresh()
    with driven(url) as store:
        asked(zookeeper(), frames.Create(path_of(url), b"gibberish", frames.OPEN_ACL_UNSAFE, 0))
        for call in (
            lambda: store.load(KEY),
            lambda: store.swap(KEY, None, b"x", 30.0),
            lambda: store.scan(KEY.family),
        ):
            with pytest.raises(StoreDamaged, match="was not written by Leasehold"):
                call()
        asked(zookeeper(), frames.Delete(path_of(url), frames.ANY))
        assert store.grant().revision


def test_nodes_that_ours_lie_under_are_made_again_when_somebody_removed_them() -> None:
    url = fresh()
    with driven(url) as store:
        asked(zookeeper(), frames.Delete(chroot_of(url) + names.bucket_path(KEY.family), frames.ANY))
        assert store.load(KEY) is None
        assert store.grant().revision


# Forks.


def test_a_forked_child_starts_with_a_session_of_its_own_and_leaves_the_parents_alone() -> None:
    with driven(fresh()) as store:
        mine = store.grant()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            theirs = store.grant(key(1))
            found = {"seen": store.load(KEY).revision, "owner": theirs.tag.owner}
            store.close()
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.close(write)
        with open(read, encoding="ascii") as pipe:
            theirs = json.loads(pipe.read())
        assert os.waitpid(child, 0)[1] == 0
        assert theirs["seen"] == mine.revision
        assert theirs["owner"] != mine.tag.owner
        assert store.load(KEY).tag.owner == mine.tag.owner
        assert store.touch([(mine, 30.0)])[0][0] is Renewal.RENEWED
        assert store.load(key(1)).tag.owner == theirs["owner"]
