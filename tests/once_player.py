"""Workers that die while they handle a key: `python once_player.py URL FOLDER SCENE HOW TIMES POINT…`.

For each point so many keys; at each a child plays the scene and ends itself at the point, by SIGKILL, or stops itself
there by SIGSTOP and goes on when all is over. Then others come for the key: with `rerun` for every second one.
What became of each is printed, a line of JSON each. HOW is `kill`, `stop`, or `trace`: nobody dies, and the points that
were passed are printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from leasehold.client import Locks
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.engine import Engine
from leasehold.errors import LeaseholdError, NotRunOnce, RunFailed
from leasehold.fence import File
from leasehold.model import Conflict, Key, Record, Swap
from leasehold.patterns.once import Once, Work
from leasehold.rules.names import LOCK, Names
from leasehold.rules.once import State
from leasehold.stores.open import open_store
from leasehold.wires.clock import system_clock
from tests.support import eventually

TTL = 0.6
AT_ONCE = 32


class Declined(Exception):
    """A definite failure."""


class Hiccup(Exception):
    """A failure after which it may be tried again."""


# Where whoever was there before died, in scenes that follow such a one.
EARLIER = "charge wrote the sink"
ERRORS = {"fail": Declined, "retry": Hiccup, "break": KeyError}
ONLY = {"long": {"renewal"}} | {scene: {"end"} for scene in ERRORS}


class Points:
    """What becomes of a process at each point it passes."""

    def __init__(self, at: str | None, how: str = "kill") -> None:
        self.passed: list[str] = []
        self._at = at
        self._how = how

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if point == self._at:
            self._at = None
            os.kill(os.getpid(), signal.SIGSTOP if self._how == "stop" else signal.SIGKILL)


class Watched:
    """A store with a point before and after each request."""

    def __init__(self, inner: Any, at: Points, scene: str) -> None:
        self._inner = inner
        self._at = at
        self._scene = scene
        self._times: Counter[str] = Counter()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    async def load(self, key: Key) -> Record | None:
        with self._around("look", key.member != LOCK):
            return await self._inner.load(key)

    async def swap(self, key: Key, expect: Any, value: bytes | None, ttl: Any) -> Record | Conflict:
        word = "write" if key.member != LOCK else "take" if value is not None else "let go"
        with self._around(word):
            return await self._inner.swap(key, expect, value, ttl)

    async def together(self, asks: Sequence[Swap]) -> list[Any]:
        with self._around("end"):
            (said,) = await self._inner.together(asks[:1])
            if self._scene not in {"long", "wait"}:
                self._at("between record and lease")
            return [said, *await self._inner.together(asks[1:])]

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        with self._around("watch"):
            return await self._inner.watch(key, seen, until)

    async def touch(self, holds: Any) -> Any:
        with self._around("renewal", self._scene == "long"):
            return await self._inner.touch(holds)

    @contextlib.contextmanager
    def _around(self, word: str, shown: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002  two words of one sentence
        # Where a scene begins like another one, its points begin with what differs.
        shown = shown and word in ONLY.get(self._scene, {word})
        self._times[word] += 1
        # Who waits asks again and again, and so does a heartbeat.
        name = word if self._scene in {"long", "wait"} else f"{word} {self._times[word]}"
        if shown:
            self._at(f"before {name}")
        yield
        if shown:
            self._at(f"after {name}")


class Shop:
    """One process that handles keys, and the effects of that."""

    def __init__(self, url: str, folder: Path, scene: str, at: Points) -> None:
        runtime = BlockingRuntime(system_clock())
        self.folder = folder
        self.scene = scene
        self.at = at
        self.renewed = threading.Event()
        store = Watched(open_store(url, timeout=30, colour=runtime), at, scene)
        drive(store.open())
        engine = Engine(store, runtime, Names(None, None), holder=None, timeout=30, observers=[self._told])
        self.locks = Locks(engine)
        self.once = Once(self.locks, ttl=TTL, definite=(Declined,), retry=(Hiccup,))

    def _told(self, event: object) -> None:
        if type(event).__name__ == "Renewed":
            self.renewed.set()

    def run(self, key: str, **options: Any) -> Any:
        answer = self.once.run(key, lambda work: self._work(work, ERRORS.get(self.scene)), **options)
        if self.scene != "long":
            self.at("answered")
        return answer

    def _work(self, work: Work, error: type[Exception] | None) -> Any:
        show = self.at if self.scene in {"run", "take over", "others"} else lambda _point: None
        show("function began")
        charged = work.step("charge", lambda: self._charge(work, show), rerun=True)
        show("between steps")
        work.step("second", lambda: show("in the second step"), rerun=True)
        if self.scene == "long":
            self.renewed.wait(30)
        if error is not None:
            self.at("before the error")
            raise error("after the effect")
        show("function ended")
        return {"charged": charged, "key": work.key}

    def _charge(self, work: Work, show: Callable[[str], None]) -> int:
        """The effect: fenced; the same without the fence; and without even a look whether it was there."""
        fenced, checked, blind = (self.folder / f"{work.key}.{kind}" for kind in ("fenced", "checked", "blind"))
        show("charge began")
        sink = File(fenced).open(work.token)
        show("charge opened the sink")
        found, unfenced = sink.read(), checked.read_bytes()
        show("charge read the sink")
        effect = b"%d\n" % work.token
        if not unfenced:
            _append(checked, effect)
        _append(blind, effect)
        if not found:
            sink.write(found + effect)
            show("charge wrote the sink")
        return int((found or effect).split()[0])


def _append(file: Path, line: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(line)


class Play:
    """All keys of one scene."""

    def __init__(self, url: str, folder: Path, scene: str, how: str) -> None:
        self.url = url
        self.folder = folder
        self.scene = scene
        self.how = how
        # Those whom others wait for.
        self.workers: list[int] = []
        self.alive: set[int] = set()

    def child(self, scene: str, key: str, point: str | None, act: Callable[[Shop], Any]) -> int:
        """A process that plays a scene with a key, and ends at a point."""
        child = os.fork()
        if child:
            self.alive.add(child)
            return child
        at = Points(point, "kill" if scene != self.scene else self.how)
        try:
            with contextlib.suppress(LeaseholdError, Declined, Hiccup, KeyError):
                act(Shop(self.url, self.folder, scene, at))
            if self.how == "trace" and scene == self.scene:
                (self.folder / f"{key}.passed").write_text(json.dumps(at.passed))
        except BaseException:  # noqa: BLE001  told, and by its code a failure of the test
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def aside(self, job: Callable[[Shop], Any]) -> Any:
        """What a job comes to in a process of its own: this one has no threads, so that it can fork."""
        answer = self.folder / "aside"
        end = self._wait_for(self.child("others", "", None, lambda shop: answer.write_text(json.dumps(job(shop)))))
        assert end == 0
        return json.loads(answer.read_text())

    def _wait_for(self, child: int) -> int:
        """How it ended, or that it was stopped."""
        end = os.waitpid(child, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(end):
            self.alive.discard(child)
        return end

    def play(self, points: Sequence[str | None], times: int) -> Iterator[dict[str, Any]]:
        """What became of each key."""
        todo = [(f"{number}-{time}", point) for number, point in enumerate(points) for time in range(times)]
        while todo:
            now, todo = todo[:AT_ONCE], todo[AT_ONCE:]
            found = list(self._play(now))
            yield from found
            # Whoever had lost its lease on a busy machine before it came to its point: once more, with another key.
            todo += [(f"{key}-again", point) for (key, point), one in zip(now, found, strict=True) if not one["end"]]
            if self.how == "trace":
                return

    def _play(self, todo: list[tuple[str, str | None]]) -> Iterator[dict[str, Any]]:
        for key, _ in todo:
            for kind in ("fenced", "checked", "blind"):
                (self.folder / f"{key}.{kind}").write_bytes(b"")
        self._earlier([key for key, _ in todo])
        children = {key: self.child(self.scene, key, point, self._act(key)) for key, point in todo}
        ends = {key: self._wait_for(child) for key, child in children.items()}
        for key, _ in todo:
            (self.folder / f"{key}.go").write_bytes(b"")
        # What the others do is no scene, and has no points.
        came = [self.aside(lambda shop: {key: self._outcome(shop, key) for key, _ in todo}) for _ in range(2)]
        for key, child in children.items():
            if os.WIFSTOPPED(ends[key]):
                os.kill(child, signal.SIGCONT)
                self._wait_for(child)
        came.append(self.aside(lambda shop: {key: self._outcome(shop, key, rerun=False) for key, _ in todo}))
        for key, point in todo:
            told = {"point": point, "rerun": self._reruns(key), "end": ends[key]}
            yield {**told, "answers": [each[key] for each in came], **self._effects(key)}
        while self.workers:
            self._wait_for(self.workers.pop())

    def _earlier(self, keys: list[str]) -> None:
        """Who was there before."""
        if self.scene == "wait":
            self.workers = [
                self.child("others", key, None, lambda shop, key=key: self._slowly(shop, key)) for key in keys
            ]
            for key in keys:
                eventually((self.folder / f"{key}.begun").exists)
        if self.scene not in {"take over", "refuse", "settle", "forget"}:
            return
        for child in [self.child("run", key, EARLIER, lambda shop, key=key: shop.run(key)) for key in keys]:
            self._wait_for(child)
        self.aside(lambda shop: [eventually(lambda key=key: _is_unknown(shop, key)) for key in keys])

    def _act(self, key: str) -> Callable[[Shop], Any]:
        match self.scene:
            case "settle":
                return lambda shop: shop.once.settle(key, {"charged": int(self._fenced(key)[0]), "key": key})
            case "forget":
                return lambda shop: shop.once.forget(key)
            case "take over":
                return lambda shop: shop.run(key, rerun=True)
            case "wait":
                return lambda shop: self._wait(shop, key)
            case _:
                return lambda shop: shop.run(key)

    def _slowly(self, shop: Shop, key: str) -> None:
        """Work that goes on until others may go on, too."""

        def doing(work: Work) -> Any:
            (self.folder / f"{key}.begun").touch()
            eventually((self.folder / f"{key}.go").exists)
            return shop._work(work, None)

        shop.once.run(key, doing)

    def _wait(self, shop: Shop, key: str) -> None:
        # It ends while we wait, unless we die before.
        threading.Timer(TTL / 3, (self.folder / f"{key}.go").touch).start()
        shop.run(key)

    def _reruns(self, key: str) -> bool:
        return int(key.split("-")[1]) % 2 == 0

    def _outcome(self, shop: Shop, key: str, *, rerun: bool | None = None) -> Any:
        try:
            return shop.run(key, rerun=self._reruns(key) if rerun is None else rerun)
        except RunFailed as error:
            return [error.kind, error.message]
        except NotRunOnce as error:
            return type(error).__name__

    def _fenced(self, key: str) -> list[bytes]:
        return (self.folder / f"{key}.fenced").read_bytes().split()

    def _effects(self, key: str) -> dict[str, Any]:
        kinds = ("fenced", "checked", "blind")
        found = {kind: (self.folder / f"{key}.{kind}").read_bytes().split() for kind in kinds}
        return {kind: [int(token) for token in tokens] for kind, tokens in found.items()}


def _is_unknown(shop: Shop, key: str) -> bool:
    found = shop.once.inspect(key)
    return found is not None and found.state is State.UNKNOWN


def main() -> None:
    url, folder, scene, how, times, *points = sys.argv[1:]
    play = Play(url, Path(folder), scene, how)
    try:
        for told in play.play(points if how != "trace" else [None], int(times)):
            if how == "trace":
                told["passed"] = json.loads((play.folder / "0-0.passed").read_text())
            print(json.dumps(told), flush=True)  # noqa: T201  the program's output
    finally:
        for child in play.alive:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
