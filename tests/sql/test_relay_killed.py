"""Relays that are killed under load, anywhere: every message arrives, in order for each key, some of them twice."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Self

import leasehold
from leasehold import sql
from tests.sql.support import Ledger
from tests.sql.test_killed import is_stopped, play
from tests.support import count, eventually, note

TTL = 0.5
KEYS = 5
WRITERS = 3
BACKLOG = 100


class Load:
    """Threads that write messages, several to one key at once, as long as the relays keep up."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]
        # (key, number) of everything that was committed.
        self.written: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        connection, chance = self._ledger.connect(), random.Random(number)
        for turn in itertools.count():
            if self._over.wait(0.002):
                return
            ((waiting,),) = connection.execute("SELECT count(*) FROM leasehold_outbox").fetchall()
            connection.rollback()
            if waiting > BACKLOG:
                continue
            # In one order, as two that wait for each other would be told of a deadlock.
            keys = sorted({f"key{chance.randrange(KEYS)}" for _ in range(2)})
            made = {(key, sql.publish(connection, "load", b"%d" % turn, key=key)) for key in keys}
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                self.written |= made


def test_relays_killed_under_load_publish_everything_in_order(ledger: Ledger, tmp_path: Path) -> None:
    journal, store, kills = tmp_path / "journal", f"sqlite://{tmp_path}/leases.db", count(50)
    journal.touch()
    told = ledger.told(store) | {"job": "relay", "ttl": TTL, "journal": str(journal)}
    chance, killed = random.Random(7), 0
    with Load(ledger) as load:
        # One works, one waits for its turn.
        relays = [play(told, die=chance.randrange(1, 200)) for _ in range(2)]
        try:
            while killed < kills:
                eventually(lambda: any(relay.poll() is not None for relay in relays), 60)
                for place, relay in enumerate(relays):
                    if relay.poll() is not None:
                        assert relay.returncode == -signal.SIGKILL
                        killed += 1
                        relay.communicate()
                        relays[place] = play(told, die=chance.randrange(1, 200))
        finally:
            for relay in relays:
                relay.kill()
                relay.communicate()
    with journal.open("a") as file, leasehold.connect(store) as locks:

        def last(message: sql.Message) -> None:
            file.write(f"{message.key} {message.payload.decode()} {message.id} 0\n")

        sql.Relay(locks, ledger.connect, publish=last, ttl=TTL).drain()
    lines = [line.split() for line in journal.read_text().splitlines()]
    got: dict[str, list[int]] = defaultdict(list)
    for key, _, number, _ in lines:
        got[key].append(int(number))
    assert {(key, number) for key, numbers in got.items() for number in numbers} == load.written
    for key, numbers in got.items():
        # Each for the first time after all that were before it in its key.
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers)), key
    twice = len(lines) - len(load.written)
    note(f"{killed} relays killed, {len(load.written)} messages, {twice} published again")


def test_a_relay_stopped_for_longer_than_its_lease_stops_publishing_and_waits_for_its_turn(
    ledger: Ledger, tmp_path: Path
) -> None:
    journal, store = tmp_path / "journal", f"sqlite://{tmp_path}/leases.db"
    journal.touch()
    told = ledger.told(store) | {"job": "relay", "ttl": TTL, "journal": str(journal)}

    def published() -> list[list[str]]:
        return [line.split() for line in journal.read_text().splitlines()]

    write(ledger, 10)
    sleeper = play(told, pause=3)
    second = None
    try:
        eventually(lambda: is_stopped(sleeper.pid))
        second = play(told)
        # It does not know that three of them were published.
        eventually(lambda: len(published()) == 13)
        os.kill(sleeper.pid, signal.SIGCONT)
        write(ledger, 5)
        eventually(lambda: len(published()) == 18)
        assert sum(int(pid) == sleeper.pid for _, _, _, pid in published()) == 3
        second.terminate()
        second.communicate(timeout=20)
        assert second.returncode == 0
        write(ledger, 5)
        eventually(lambda: len(published()) == 23)
        assert [int(pid) for _, _, _, pid in published()][-5:] == [sleeper.pid] * 5
        sleeper.terminate()
        sleeper.communicate(timeout=20)
        assert sleeper.returncode == 0
    finally:
        for player in filter(None, (sleeper, second)):
            player.kill()
            player.communicate()


def write(ledger: Ledger, messages: int) -> None:
    connection = ledger.connect()
    for number in range(messages):
        sql.publish(connection, "topic", b"%d" % number, key="a")
    connection.commit()
