"""Contenders for one lock, in a process of their own: `python contender.py LOCK URL SECONDS HOLD THREADS`.

Started by a line on stdin, each takes the lock, holds it for HOLD seconds and lets go, again
and again; with SECONDS 0 each does so once. At the end one line tells all turns: when each was
granted and when it was about to be let go, on the monotonic clock of the machine. Run by the
environment of whichever library it measures.
"""

import json
import sys
import threading
import time
import warnings

warnings.simplefilter("ignore")
KEY = "invoice/42"


def ours(url, *, fair):
    import leasehold

    locks = leasehold.connect(url, timeout=30)

    def turn(hold):
        with locks.hold(KEY, ttl=30, fair=fair):
            hold()

    return lambda: turn


def redis_py(url):
    import redis

    client = redis.Redis.from_url(url)

    def make():
        lock = client.lock(KEY, timeout=30)

        def turn(hold):
            with lock:
                hold()

        return turn

    return make


def python_redis_lock(url):
    import redis
    import redis_lock

    client = redis.Redis.from_url(url)

    def make():
        def turn(hold):
            with redis_lock.Lock(client, KEY, expire=30):
                hold()

        return turn

    return make


def kazoo(url):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=url.removeprefix("zookeeper://"))
    client.start()

    def make():
        lock = client.Lock("/invoice-42", "contender")

        def turn(hold):
            with lock:
                hold()

        return turn

    return make


def etcd3(url):
    import etcd3 as library

    host, _, port = url.removeprefix("etcd://").partition(":")
    client = library.client(host=host, port=int(port))

    def make():
        def turn(hold):
            with client.lock(KEY, ttl=30):
                hold()

        return turn

    return make


LOCKS = {
    "fair": lambda url: ours(url, fair=True),
    "ours": lambda url: ours(url, fair=False),
    "redis-py": redis_py,
    "python-redis-lock": python_redis_lock,
    "kazoo": kazoo,
    "etcd3": etcd3,
}


def main():
    name, url, seconds, hold_for, threads = sys.argv[1:]
    make, turns, length = LOCKS[name](url), [], float(hold_for)

    def contend(end):
        turn = make()

        def hold():
            granted = time.monotonic()
            if length:
                time.sleep(length)
            turns.append((granted, time.monotonic()))

        together.wait()
        turn(hold)
        while time.monotonic() < end:
            turn(hold)

    # Threads take a while to start: all are there before any of them asks.
    together = threading.Barrier(int(threads))
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    people = [threading.Thread(target=contend, args=(end,), daemon=True) for _ in range(int(threads))]
    for each in people:
        each.start()
    for each in people:
        # Whoever is never served would otherwise be waited for.
        each.join(max(end + 30 - time.monotonic(), 0))
    print(json.dumps(list(turns)), flush=True)


if __name__ == "__main__":
    main()
