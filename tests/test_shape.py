"""The shape of the package: what is public, that both facades match, that layers hold, that importing is cheap."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
from leasehold import aio, client, errors
from leasehold.errors import LeaseholdError, MissingExtra
from leasehold.extras import require
from tests.support import PYTHON, ROOT, note

SOURCE = ROOT / "src" / "leasehold"
USAGE = ROOT / "tests" / "typing" / "usage.py"


# What is public.


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert leasehold.__all__ == sorted(set(leasehold.__all__))
    for name in leasehold.__all__:
        assert getattr(leasehold, name) is not None


def test_every_error_and_every_name_of_the_facade_is_public() -> None:
    own = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    facade = {name for name in aio.__all__ if name != "OnLost"}
    assert own | facade <= set(leasehold.__all__)


def test_nothing_else_is_public() -> None:
    ours = {
        name
        for name, value in vars(leasehold).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("leasehold")
    }
    assert ours <= set(leasehold.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'leasehold' has no attribute 'lokcs'"):
        leasehold.lokcs  # noqa: B018  looking is the test


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if not _docstring(file)]
    assert not silent


def _docstring(file: Path) -> str | None:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


def test_every_public_name_says_what_it_promises() -> None:
    for name in set(leasehold.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(leasehold, name)), name
    for name in ("Hold", "Lease", "Locks", "Loss"):
        for member, value in _members(getattr(leasehold, name)).items():
            assert inspect.getdoc(value), f"{name}.{member}"


# Both facades match.


TWINS = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
PAIRS = ["connect", "Hold", "Lease", "Locks", "Loss"]


def _members(kind: type) -> dict[str, object]:
    """The public members of a class, and its `with` under the blocking name."""
    found = {TWINS.get(name, name): inspect.getattr_static(kind, name) for name in dir(kind)}
    return {name: value for name, value in found.items() if not name.startswith("_") or name in TWINS.values()}


def _function(member: object) -> object:
    return member.fget if isinstance(member, property) else member


def _parameters(function: object) -> list[tuple[str, object, object, object]]:
    if not callable(function) or isinstance(function, type):
        return []
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default, each.annotation) for each in found]


def differences(one: object, other: object) -> Iterator[str]:
    """Everything in which two functions or classes do not look alike to a reader."""
    name = getattr(one, "__name__", "?")
    if inspect.getdoc(one) != inspect.getdoc(other):
        yield f"{name}: docstrings"
    if isinstance(one, type) and isinstance(other, type):
        mine, theirs = _members(one), _members(other)
        yield from (f"{name}.{lone}: only on one side" for lone in sorted(mine.keys() ^ theirs.keys()))
        for member in sorted(mine.keys() & theirs.keys()):
            if type(mine[member]) is not type(theirs[member]):
                yield f"{name}.{member}: kinds"
            yield from differences(_function(mine[member]), _function(theirs[member]))
    elif _parameters(one) != _parameters(other):
        yield f"{name}: parameters"


@pytest.mark.parametrize("name", PAIRS)
def test_both_facades_look_alike(name) -> None:
    assert list(differences(getattr(client, name), getattr(aio, name))) == []


def test_a_pair_that_differs_is_reported() -> None:  # noqa: C901  two classes that differ in everything
    """The control: each kind of difference is seen."""

    class One:
        """A thing."""

        def renamed(self) -> None:
            """Here."""

        def order(self, a: int, b: int) -> None:
            """Two."""

        def default(self, a: int = 1) -> None:
            """One."""

        def kind(self, *, a: int) -> None:
            """One."""

        def said(self) -> None:
            """This."""

        @property
        def shown(self) -> int:
            """A number."""
            return 1

    class Other:
        """A thing."""

        def called(self) -> None:
            """Here."""

        def order(self, b: int, a: int) -> None:
            """Two."""

        def default(self, a: int = 2) -> None:
            """One."""

        def kind(self, a: int) -> None:
            """One."""

        def said(self) -> None:
            """That."""

        def shown(self) -> int:
            """A number."""
            return 1

    assert list(differences(One, One)) == []
    assert list(differences(One, Other)) == [
        "One.called: only on one side",
        "One.renamed: only on one side",
        "default: parameters",
        "kind: parameters",
        "order: parameters",
        "said: docstrings",
        "One.shown: kinds",
    ]


AWAITED = {
    "Hold": {"__enter__", "__exit__"},
    "HoldAll": {"__enter__", "__exit__"},
    "Leases": {"release"},
    "Lease": {"downgrade", "release", "release_part", "renew", "upgrade"},
    "Locks": {
        *(
            "__enter__",
            "__exit__",
            "acquire",
            "break_lease",
            "close",
            "gc",
            "inspect",
            "list",
            "suggest_retry",
            "try_acquire",
        ),
    },
    "Loss": {"wait"},
}


@pytest.mark.parametrize("name", AWAITED)
def test_what_reaches_the_store_is_awaited_and_nothing_else_is(name) -> None:
    def coroutines(kind: type) -> set[str]:
        return {member for member, value in _members(kind).items() if inspect.iscoroutinefunction(value)}

    assert coroutines(getattr(aio, name)) == AWAITED[name]
    assert coroutines(getattr(client, name)) == set()


# Layers.


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """The layer contracts, held against the package in a folder."""
    command = [str(Path(PYTHON).with_name("lint-imports")), "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(folder)}
    )


def test_imports_flow_one_way() -> None:
    found = lint_imports(SOURCE.parent)
    assert found.returncode == 0, found.stdout
    assert "0 broken" in found.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("rules/names.py", "import leasehold.engine.engine", "imports flow one way BROKEN"),
        ("stores/base.py", "from leasehold import client", "imports flow one way BROKEN"),
        ("rules/timing.py", "import time", "rules are pure: no clock, no chance, no input or output BROKEN"),
        ("stores/memory.py", "import asyncio", "asyncio has a colour"),
    ],
)
def test_an_import_that_flows_the_wrong_way_is_seen(tmp_path, file, line, contract) -> None:
    """The control: the same package with one wrong import breaks its contract."""
    shutil.copytree(SOURCE, tmp_path / "leasehold", ignore=shutil.ignore_patterns("__pycache__"))
    assert lint_imports(tmp_path).returncode == 0
    with (tmp_path / "leasehold" / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    found = lint_imports(tmp_path)
    assert found.returncode != 0
    assert contract in found.stdout
    assert "1 broken" in found.stdout


# The tree of errors.


BRANCH = re.compile(r"^(?P<indent>[ │├└─]*)(?P<name>\w+)(?:\s+\(also an? (?P<also>\w+)\))?")


def drawn_tree(text: str) -> dict[str, tuple[str | None, str | None]]:
    """From the drawing in a docstring: each error's parent, and what of Python's own it also is."""
    lines = text[text.index("LeaseholdError") - 4 : text.index("\n\nA message")].splitlines()
    path: list[tuple[int, str]] = []
    tree = {}
    for line in filter(str.strip, lines):
        found = BRANCH.match(line)
        assert found, line
        while path and path[-1][0] >= len(found["indent"]):
            path.pop()
        tree[found["name"]] = (path[-1][1] if path else None, found["also"])
        path.append((len(found["indent"]), found["name"]))
    return tree


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    tree = drawn_tree(errors.__doc__ or "")
    kinds = {
        name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert tree.keys() == kinds.keys()
    for name, (parent, also) in tree.items():
        bases = [base.__name__ for base in kinds[name].__bases__]
        expected = [each for each in (parent, also) if each] or ["Exception"]
        assert bases == expected, name
        assert issubclass(kinds[name], LeaseholdError)


def test_a_drawing_is_read_with_its_branches() -> None:
    """The control: the reader sees parents and siblings."""
    text = "    LeaseholdError\n    ├── A (also a ValueError) x\n    │   └── B  y\n    └── C  z\n\nA message"
    assert drawn_tree(text) == {
        "LeaseholdError": (None, None),
        "A": ("LeaseholdError", "ValueError"),
        "B": ("A", None),
        "C": ("LeaseholdError", None),
    }


# Importing.


def modules_after(statement: str) -> set[str]:
    """What a fresh Python has loaded after a statement."""
    code = f"import sys; {statement}; import json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_leasehold_loads_nothing_a_blocking_program_may_not_need() -> None:
    loaded = modules_after("import leasehold")
    assert "leasehold.client" in loaded
    unwanted = {
        "asyncio",
        "apsw",
        "click",
        "leasehold.aio",
        "leasehold.client_aio",
        "leasehold.cli",
        "leasehold.testing",
        "leasehold.stores.sqlite",
    }
    assert not unwanted & loaded


def test_asyncio_and_apsw_come_when_they_are_asked_for() -> None:
    """The control of the test above."""
    assert {"asyncio", "leasehold.aio"} <= modules_after("import leasehold; leasehold.aio")
    assert "apsw" in modules_after("import leasehold.stores.sqlite")


def test_importing_leasehold_loads_no_more_modules_than_importing_redis() -> None:
    ours, theirs = len(modules_after("import leasehold")), len(modules_after("import redis"))
    note(f"modules: leasehold {ours}, redis {theirs}")
    assert ours <= theirs


def test_a_missing_extra_is_one_error_that_names_the_command() -> None:
    with pytest.raises(MissingExtra) as caught:
        require("no_such_package_at_all", feature="redis://", extra="redis")
    assert "redis:// needs packages that are not installed" in str(caught.value)
    assert "pip install 'leasehold[redis]'" in str(caught.value)
    assert caught.value.extra == "redis"
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_package_that_is_there_is_given() -> None:
    assert isinstance(require("json", feature="json", extra="all"), types.ModuleType)


# Types.


def mypy(file: Path) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-m", "mypy", "--strict", "--config-file=", str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_public_interface_is_fully_typed() -> None:
    found = mypy(USAGE)
    assert found.returncode == 0, found.stdout


def test_every_public_name_is_used_in_the_typed_example() -> None:
    used = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(USAGE.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert {f"leasehold.{name}" for name in leasehold.__all__} <= used
    assert {f"aio.{name}" for name in aio.__all__ if name != "connect"} <= used


ASYNC_ONLY = """
import leasehold

async def main() -> None:
    locks = await leasehold.aio.connect("memory://")
    reveal_type(locks)
"""


def test_a_program_that_only_imports_leasehold_sees_the_types_of_aio(tmp_path) -> None:
    file = tmp_path / "program.py"
    file.write_text(ASYNC_ONLY, encoding="utf-8")
    found = mypy(file)
    assert 'Revealed type is "leasehold.client_aio.Locks"' in found.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        "locks.acquire(5)",
        "locks.acquire('x', 30)",
        "locks.acquire('x', tll=30)",
        "locks.acquire('x').token + 'x'",
        "locks.try_acquire('x').token",
        "locks.gc('x')",
    ],
)
def test_a_wrong_call_is_seen_by_the_type_checker(tmp_path, wrong) -> None:
    """The control: the types say something."""
    file = tmp_path / "program.py"
    file.write_text(f"import leasehold\n\nlocks = leasehold.connect('memory://')\n{wrong}\n", encoding="utf-8")
    found = mypy(file)
    assert found.returncode == 1
    assert "program.py:4: error" in found.stdout
