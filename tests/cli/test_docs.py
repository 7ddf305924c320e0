"""`docs/cli.md` names every command, every option, and every exit code, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from leasehold.cli import codes
from leasehold.cli.program import COMMANDS, program
from tests.support import ROOT

TEXT = (ROOT / "docs" / "cli.md").read_text()


def commands(group: click.Group) -> Iterator[click.Command]:
    """All commands of a group, and those of the groups in it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found) if isinstance(found, click.Group) else [found]


def test_every_option_of_every_command_is_documented_and_no_other() -> None:
    options = {
        name
        for command in commands(program)
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }
    # `--all` belongs to the command of an example.
    assert set(re.findall(r"--[a-z][a-z-]*", TEXT)) == options | {"--version", "--all"}


def test_every_command_has_a_section() -> None:
    assert [title for title in re.findall(r"^## (.*)$", TEXT, re.MULTILINE) if title != "Exit codes"] == list(COMMANDS)


def test_every_exit_code_is_documented_and_no_other() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)} | {141}
    known = {value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}
    assert documented == known - {codes.INTERRUPTED} | {0}
