"""What cannot work is refused by name, in a few words, before anything is written; in both colours, on each store."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import random
import threading
import uuid

import pytest

import leasehold
from leasehold import aio
from leasehold.errors import AlreadyHeld, ClientClosed, InvalidInput, LeaseholdError, shown
from leasehold.model import ByteRange, Inode, Name, Path, Permit, Scope, Shared
from leasehold.rules.names import LABEL_MAX
from tests.facades import COLOURS, answer, memory_place, sqlite_place, within
from tests.rules.hostile import HOSTILE
from tests.support import count

TEN_MEGABYTES = 10_000_000
# The longest message there may be: two shortened values and a sentence.
WORDS = 400


@pytest.fixture(params=COLOURS, ids=lambda colour: colour.name)
def colour(request):
    return request.param


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return memory_place(uuid.uuid4().hex) if request.param == "memory" else sqlite_place(tmp_path / "leases.db")


TEXTS = [None, 5, b"x", ["x"], "", "a\0b", "\ud800", "x" * TEN_MEGABYTES]
NUMBERS = [-1, math.nan, math.inf, -math.inf, 10**400, 10**5000, "5", True, [5]]
FLAGS = ["no", "", 1, 0, None, [True]]
TTLS = [None, 0, 0.05, 86_401, *NUMBERS]
NOTES = [5, "who", [("who", "me")], {1: "x"}, {"": "x"}, {"who": 5}, {"who": None}, {"who": "x" * TEN_MEGABYTES}]
FUNCTIONS = [5, "print", [print]]

PARTS = [
    *(Shared(name) for name in (5, "", "x" * 1025)),
    *(Inode(number) for number in (-1, 2**64, "7", True, 1.0)),
    *(ByteRange(7, start, end) for start, end in ((5, 5), (9, 3), (-1, 5), (0, 2**63 + 1), (2**63, None), (0.5, 2))),
    *(Path(path) for path in ("data", "", "./data", "/a/../b", "..", 5, "/a\0b")),
    *(Path("/a", root=root) for root in ("b", "/b", "", "/a/b")),
    *(Permit(name, permits) for name, permits in (("x", 0), ("x", -1), ("x", 2.0), ("x", True), ("", 1))),
]
SCOPES = [*TEXTS, Name(5), Name(""), Name("x" * 1025), *PARTS]
ASKING = {
    "scope": SCOPES,
    "mode": ["", "read", None, 1, ["shared"], "shared"],
    "ttl": TTLS,
    "wait": NUMBERS,
    "metadata": NOTES,
    "max_hold": [0, 29.9, *NUMBERS],
    "reentrant": FLAGS,
    "fair": FLAGS,
    "retry": [5, "often", print, [leasehold.Backoff()]],
    "on_lost": FUNCTIONS,
}
WRONG = {
    "try_acquire": {field: values for field, values in ASKING.items() if field not in {"wait", "fair", "retry"}},
    "acquire": ASKING,
    "hold": ASKING,
    "locked": {field: values for field, values in ASKING.items() if field not in {"scope", "mode", "on_lost"}}
    | {"template": [*TEXTS, "{", "{0}", "{self.x}"]},
    "hold_all": {
        field: values for field, values in ASKING.items() if field in {"ttl", "wait", "metadata", "max_hold", "fair"}
    }
    | {"scopes": [None, 5, "job", b"job", [], (), [5], ["job", ""], [("job", "shared")], [(Shared("job"), "read")]]},
    "suggest_retry": {"scope": ASKING["scope"]},
    "inspect": {"scope": ASKING["scope"]},
    "break_lease": {"scope": ASKING["scope"], "reason": [*TEXTS, "x" * 1025], "force": FLAGS},
    "gc": {"limit": [None, -1, 2.5, math.nan, "5", True, [5]]},
}
GOOD = {
    "try_acquire": {"scope": "held"},
    "acquire": {"scope": "held"},
    "hold": {"scope": "held"},
    "hold_all": {"scopes": ["held"]},
    "locked": {"template": "held"},
    "suggest_retry": {"scope": "held"},
    "inspect": {"scope": "held"},
    "break_lease": {"scope": "held", "reason": "a test"},
    "gc": {},
}
CONNECT = {
    "holder": [5, b"x", "", "a\0b", "\ud800", "x" * 257, "x" * TEN_MEGABYTES],
    "prefix": [5, b"x", "", "a\0b", "\ud800", "x" * 129, "x" * TEN_MEGABYTES],
    "tenant": [5, b"x", "", "a\0b", "\ud800", "x" * 129, "x" * TEN_MEGABYTES],
    "timeout": [None, 0, 3601, *NUMBERS],
    "helper": FLAGS,
    "local_passes": [None, -1, 256, 2.5, "5", True, [5]],
    "observers": [5, None, [5], "print", [None]],
}


def cases(table):
    """One case for each verb and argument; the values are tried inside, so that the report stays readable."""
    return [pytest.param(verb, field, id=f"{verb}-{field}") for verb, fields in table.items() for field in fields]


def check_refusal(error: InvalidInput, field: str, value: object) -> None:
    """It names the field, shows what was given, says what would do, and all that shortly."""
    message = str(error)
    assert error.field.startswith(field)
    assert message.startswith(error.field)
    assert error.remedy in message
    # Of a scope or of notes, the part that is wrong may be shown alone.
    assert isinstance(value, Scope | dict | list) or shown(value) in message
    assert len(message) <= WORDS
    assert message.isprintable()


async def ask(locks, verb: str, arguments: dict[str, object]) -> None:
    """Call the verb as a program would, up to the point where something could be written."""
    if verb in {"hold", "hold_all"}:
        async with within(getattr(locks, verb)(**arguments)):
            return
    if verb == "locked":
        template = arguments.pop("template")
        wrapped = locks.locked(template, **arguments)(make_function(locks))
        await answer(wrapped("x"))
        return
    await answer(getattr(locks, verb)(**arguments))


def make_function(locks):
    async def awaited(_name: str) -> None:
        """Nothing to do."""

    def plain(_name: str) -> None:
        """Nothing to do."""

    return awaited if isinstance(locks, aio.Locks) else plain


@pytest.mark.parametrize(("verb", "field"), cases(WRONG))
def test_a_wrong_argument_is_refused_by_name_and_nothing_is_written(colour, place, verb, field) -> None:
    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            await answer(locks.acquire("mine", ttl=60))
            before = place.content()
            for value in WRONG[verb][field]:
                with pytest.raises(InvalidInput) as caught:
                    await ask(locks, verb, {**GOOD[verb], field: value})
                check_refusal(caught.value, field, value)
                assert place.content() == before

    colour.run(story())


def test_no_argument_of_a_verb_escapes_the_table() -> None:
    for name, verb in inspect.getmembers(leasehold.Locks, inspect.isfunction):
        if not name.startswith("_"):
            assert set(inspect.signature(verb).parameters) - {"self"} == set(WRONG.get(name, ())), name
    assert set(inspect.signature(leasehold.connect).parameters) - {"url"} == set(CONNECT)


@pytest.mark.parametrize("verb", GOOD)
def test_the_same_calls_with_good_arguments_work(colour, place, verb) -> None:
    """The control: what is refused above is refused for the one argument that is wrong."""

    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            before = place.content()
            await ask(locks, verb, dict(GOOD[verb]))
            assert (place.content() == before) == (verb in {"suggest_retry", "inspect", "break_lease", "gc"})

    colour.run(story())


@pytest.mark.parametrize("field", CONNECT)
def test_a_wrong_argument_of_connect_is_refused_before_the_store_exists(colour, place, field) -> None:
    async def story() -> None:
        for value in CONNECT[field]:
            with pytest.raises(InvalidInput) as caught:
                await answer(colour.connect(place.url, **{field: value}))
            check_refusal(caught.value, field, value)
            assert place.content() is None

    colour.run(story())


def test_a_wrong_patience_for_a_loss_is_refused(colour, place) -> None:
    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            lease = await answer(locks.acquire("x"))
            for value in NUMBERS:
                with pytest.raises(InvalidInput) as caught:
                    await answer(lease.lost.wait(value))
                check_refusal(caught.value, "timeout", value)
            assert await answer(lease.lost.wait(0)) is False

    colour.run(story())


def test_the_mode_the_store_and_the_values_of_an_error_stay_with_it() -> None:
    with leasehold.connect("memory://") as locks, pytest.raises(InvalidInput) as caught:
        locks.acquire("")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LeaseholdError)


# The decorator.


@pytest.mark.parametrize("template", ["{user}", "{user_id.x}", "{user_id!r}", "{}", "{", "x" * 1025, "", 5])
def test_a_wrong_template_is_refused_at_decoration(colour, place, template) -> None:
    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            with pytest.raises(InvalidInput, match="template"):
                locks.locked(template)(make_function(locks))

    colour.run(story())


def test_only_functions_whose_whole_run_can_be_held_may_be_decorated(place) -> None:
    def plain() -> None:
        """Returns when it is done."""

    async def awaited() -> None:
        """Is done when it was awaited."""

    def generator():
        yield

    async def async_generator():
        yield

    with leasehold.connect(place.url) as locks:
        locks.locked("x")(plain)()
        for function in (awaited, generator, async_generator, 5, None, "plain"):
            with pytest.raises(InvalidInput, match="function: must be"):
                locks.locked("x")(function)

    async def story() -> None:
        async with await aio.connect(place.url) as locks:
            await locks.locked("x")(awaited)()
            for function in (plain, generator, async_generator, 5, None, "plain"):
                with pytest.raises(InvalidInput, match="function: must be"):
                    locks.locked("x")(function)

    asyncio.run(story())


@pytest.mark.parametrize(
    "value", [None, 1.5, True, b"x", [], "a\0b", "", "x" * TEN_MEGABYTES], ids=lambda v: ascii(v)[:9]
)
def test_a_value_that_names_nothing_is_refused_when_the_function_is_called(colour, place, value) -> None:
    called = []

    async def awaited(user_id: object) -> None:
        called.append(user_id)

    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            before = place.content()
            function = awaited if colour.name == "asyncio" else called.append
            template = "{user_id}" if colour.name == "asyncio" else "{object}"
            with pytest.raises(InvalidInput) as caught:
                await answer(locks.locked(template)(function)(value))
            assert len(str(caught.value)) <= WORDS
            assert not called
            assert place.content() == before

    colour.run(story())


# URLs.


@pytest.mark.parametrize(
    "url",
    [
        None,
        5,
        b"memory://",
        "",
        "leases.db",
        "/var/lib/leases.db",
        "file:///leases.db",
        "mysql://host/db",
        "memory",
        "memory://a/b",
        "memory:///a",
        "memory://?synchronous=full",
        "memory://x?a=1",
        "memory://[",
        "memory://x#y",
        "sqlite:",
        "sqlite:{folder}/x.db",
        "sqlite:./{folder}/x.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite://host/x.db",
        "sqlite://x.db",
        "sqlite:///{folder}/",
        "sqlite:///{folder}/sub%2F",
        "sqlite:///{folder}/x.db?mode=ro",
        "sqlite:///{folder}/x.db?synchronous=off",
        "sqlite:///{folder}/x.db?synchronous=",
        "sqlite:///{folder}/x.db?synchronous",
        "sqlite:///{folder}/x.db?synchronous=full&synchronous=full",
        "sqlite:///{folder}/x.db?synchronous=full&x=1",
        "sqlite:///{folder}/x.db?Synchronous=full",
        "sqlite:///{folder}/x.db#part",
        "sqlite:///{folder}/a%00b.db",
        "sqlite:///{folder}/a\0b.db",
        "sqlite:///{folder}/\ud800.db",
        "sqlite:///{folder}/%FF.db",
        "sqlite:///{folder}/a\nb.db",
        "sqlite:///{folder}/missing/x.db",
        "sqlite:///{folder}",
        "sqlite:///{folder}/.",
        "sqlite:///{folder}/..",
        "sqlite:///{folder}/" + "x" * 5000,
        "sqlite:///{folder}/" + "x" * 5000 + "/x.db",
        "x" * TEN_MEGABYTES,
        "sqlite:///" + "x" * TEN_MEGABYTES,
        "memory://?" + "x" * TEN_MEGABYTES,
    ],
    ids=lambda url: shown(url)[:45],
)
def test_a_url_that_names_no_store_is_refused_and_makes_no_file(colour, tmp_path, url) -> None:
    given = url.replace("{folder}", str(tmp_path).lstrip("/")) if isinstance(url, str) else url

    async def story() -> None:
        with pytest.raises(InvalidInput) as caught:
            await answer(colour.connect(given))
        assert caught.value.field == "url"
        assert len(str(caught.value)) <= WORDS
        assert str(caught.value).isprintable()

    colour.run(story())
    assert not list(tmp_path.iterdir())


def test_an_unknown_scheme_is_answered_with_those_there_are(colour) -> None:
    async def story() -> None:
        with pytest.raises(InvalidInput, match="url: the scheme must be one of memory://, sqlite://"):
            await answer(colour.connect("mysql://host/db"))

    colour.run(story())


def test_a_password_in_a_url_is_not_repeated_in_the_error(colour) -> None:
    async def story() -> None:
        for url in ("mysql://me:hunter2@host/db", "sqlite://me:hunter2@host/x.db", "memory://me:hunter2@host/x"):
            with pytest.raises(InvalidInput) as caught:
                await answer(colour.connect(url))
            assert "hunter2" not in str(caught.value)
            assert "host" in str(caught.value)

    colour.run(story())


def test_slashes_and_escapes_in_a_path_name_the_file_they_seem_to(colour, tmp_path) -> None:
    folder = tmp_path / "a b%é"
    folder.mkdir()
    path = str(folder / "leases.db")
    escaped = path.replace("%", "%25").replace(" ", "%20").replace("é", "%C3%A9")

    async def story() -> None:
        async with within(await answer(colour.connect(f"sqlite://{escaped}"))) as first:
            lease = await answer(first.acquire("x"))
            for url in (f"sqlite:///{escaped}", f"SQLite://{escaped}?synchronous=NORMAL", f"sqlite:////{escaped}"):
                async with within(await answer(colour.connect(url))) as other:
                    assert (await answer(other.inspect("x"))).token == lease.token

    colour.run(story())
    assert {file.name for file in folder.iterdir()} == {"leases.db"}


def test_memories_of_different_names_share_nothing(colour) -> None:
    one, other = uuid.uuid4().hex, uuid.uuid4().hex

    async def story() -> None:
        async with within(await answer(colour.connect(f"memory://{one}"))) as first:
            await answer(first.acquire("x"))
            async with within(await answer(colour.connect(f"memory://{other}"))) as second:
                assert await answer(second.list()) == []
            async with within(await answer(colour.connect(f"memory://{one}"))) as third:
                assert [info.scope for info in await answer(third.list())] == ["x"]

    colour.run(story())


# Closed, or in the wrong place.


VERBS = [*GOOD, "list"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_a_closed_client_says_so(colour, place, verb) -> None:
    async def story() -> None:
        locks = await answer(colour.connect(place.url))
        await answer(locks.acquire("held"))
        await answer(locks.close())
        before = place.content()
        with pytest.raises(ClientClosed, match="closed; connect again"):
            await ask(locks, verb, dict(GOOD.get(verb, {})))
        assert place.content() == before

    colour.run(story())


def test_a_closed_client_leaves_nothing_held_and_its_leases_say_so(colour, place) -> None:
    async def story() -> None:
        locks = await answer(colour.connect(place.url))
        lease = await answer(locks.acquire("held"))
        await answer(locks.close())
        await answer(locks.close())
        assert not lease.held
        assert await answer(lease.release()) is False
        assert await answer(lease.lost.wait()) is False
        with pytest.raises(ClientClosed):
            await answer(lease.renew())
        with pytest.raises(ClientClosed):
            lease.adopt()
        async with within(await answer(colour.connect(place.url))) as again:
            assert await answer(again.list()) == []

    colour.run(story())


def test_leaving_the_block_of_a_client_closes_it(colour, place) -> None:
    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            await answer(locks.acquire("held"))
        with pytest.raises(ClientClosed):
            await answer(locks.list())

    colour.run(story())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_an_asyncio_client_refuses_another_loop(place, verb) -> None:
    async def connected() -> aio.Locks:
        return await aio.connect(place.url)

    with asyncio.Runner() as home:
        locks = home.run(connected())
        before = place.content()

        async def elsewhere() -> None:
            with pytest.raises(ClientClosed, match="another event loop; connect once in each loop"):
                await ask(locks, verb, dict(GOOD.get(verb, {})))

        asyncio.run(elsewhere())
        assert place.content() == before
        home.run(locks.close())


def test_a_lease_of_an_asyncio_client_refuses_another_loop_and_stays_held(place) -> None:
    async def acquired() -> tuple[aio.Locks, aio.Lease]:
        locks = await aio.connect(place.url)
        return locks, await locks.acquire("x")

    with asyncio.Runner() as home:
        locks, lease = home.run(acquired())

        async def elsewhere() -> None:
            for verb in (lease.renew, lease.release, lease.lost.wait, locks.close):
                with pytest.raises(ClientClosed, match="another event loop"):
                    await verb()

        asyncio.run(elsewhere())
        assert lease.held
        assert home.run(lease.release()) is True
        home.run(locks.close())


# Asking for what one holds.


def test_the_same_thread_or_task_asking_again_is_told_so_at_once(colour, place) -> None:
    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            lease = await answer(locks.acquire("x", ttl=60))
            before = place.content()
            for verb in ("try_acquire", "acquire", "hold"):
                with pytest.raises(AlreadyHeld, match=f"already holds 'x' .token {lease.token}.*reentrant=True"):
                    await ask(locks, verb, {"scope": Name("x")})
            assert place.content() == before
            assert lease.held
            assert await answer(lease.release()) is True
            assert (await answer(locks.acquire("x"))).token > lease.token

    colour.run(story())


def test_another_thread_or_task_waits_instead(colour, place) -> None:
    async def story() -> None:
        async with within(await answer(colour.connect(place.url))) as locks:
            lease = await answer(locks.acquire("x", ttl=60))
            # Seen by the observer of the second one: it waits, it is not refused.
            waiting = locks._engine.runtime.signal()

            async def second() -> int:
                assert await answer(locks.try_acquire("x")) is None
                waiting.set()
                mine = await answer(locks.acquire("x", wait=60))
                await answer(mine.release())
                return mine.token

            async def first() -> bool:
                await waiting.wait()
                return await answer(lease.release())

            runtime = locks._engine.runtime
            token, released = await runtime.gather(second(), first())
            assert released is True
            assert token > lease.token

    colour.run(story())


def test_a_lease_handed_over_makes_the_new_keeper_the_one_who_may_not_wait(place) -> None:
    with leasehold.connect(place.url) as locks:
        lease = locks.acquire("x", ttl=60)
        told = []

        def other() -> None:
            lease.adopt()
            try:
                locks.try_acquire("x")
            except AlreadyHeld as error:
                told.append(error.token)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert told == [lease.token]
        assert locks.try_acquire("x") is None


# Hostile keys side by side.


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_hostile_keys_are_held_side_by_side(colour, tmp_path, kind) -> None:
    place = memory_place(uuid.uuid4().hex) if kind == "memory" else sqlite_place(tmp_path / "leases.db")

    async def story() -> None:
        async with within(await answer(colour.connect(place.url + _quick(kind)))) as locks:
            leases = [await answer(locks.try_acquire(key)) for key in HOSTILE]
            assert all(lease is not None and lease.held for lease in leases)
            assert [info.scope for info in await answer(locks.list())] == sorted(HOSTILE)
            for key, lease in zip(HOSTILE, leases, strict=True):
                assert (await answer(locks.inspect(key))).token == lease.token
            for key, lease in zip(HOSTILE, leases, strict=True):
                assert await answer(lease.release()) is True
                assert await answer(locks.inspect(key)) is None
            assert await answer(locks.list()) == []

    colour.run(story())


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def shared_url(request, tmp_path_factory):
    """One store for all examples of a property: they clean up after themselves."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return f"sqlite://{tmp_path_factory.mktemp('hostile')}/leases.db{_quick('sqlite')}"


def _quick(kind: str) -> str:
    # What is written here need not survive a power cut.
    return "?synchronous=normal" if kind == "sqlite" else ""


def hostile_word(chance: random.Random) -> str:
    """A hostile key, or a short one made of what joining and escaping stumble over."""
    made = "".join(chance.choices("a/%25F0.", k=chance.randint(1, 4)))
    return chance.choice([made, made, chance.choice(HOSTILE)])


def hostile_owner(chance: random.Random) -> tuple[str | None, str | None]:
    """A prefix and a tenant."""
    words = [None, *(word[:LABEL_MAX] for word in (hostile_word(chance), hostile_word(chance)))]
    return chance.choice(words), chance.choice(words)


def test_prefixes_and_tenants_share_a_store_and_nothing_else(shared_url) -> None:
    # Not Hypothesis: it forbids drawing while a heartbeat in the background draws its own chance.
    for number in range(count(1_000)):
        chance = random.Random(number)
        wanted = {
            hostile_owner(chance): {hostile_word(chance) for _ in range(chance.randint(1, 3))}
            for _ in range(chance.randint(2, 4))
        }
        check_apart(shared_url, wanted)


def check_apart(url: str, wanted: dict[tuple[str | None, str | None], set[str]]) -> None:
    """Everybody gets the keys they want, sees theirs and no others, and reaches no others."""
    with contextlib.ExitStack() as stack:
        clients = {
            owner: stack.enter_context(leasehold.connect(url, prefix=owner[0], tenant=owner[1])) for owner in wanted
        }
        held = {(owner, key): clients[owner].try_acquire(key) for owner, keys in wanted.items() for key in keys}
        assert all(held.values()), wanted
        for owner, keys in wanted.items():
            seen = {info.scope: info.token for info in clients[owner].list()}
            assert seen == {key: held[owner, key].token for key in keys}, wanted
            # What others hold is free here, and cannot be broken from here.
            for key in {key for others in wanted.values() for key in others} - keys:
                assert clients[owner].inspect(key) is None
                assert clients[owner].break_lease(key, reason="not mine", force=True) is None
        assert all(lease.renew() for lease in held.values()), wanted
