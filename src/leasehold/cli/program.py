"""From the command line to a command, and from an outcome to an exit code.

Commands live in their own modules and are imported when asked for. Each returns
its exit code. An error of Leasehold's tree becomes one line on stderr; anything
else is a bug and shows its traceback.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from leasehold import __version__
from leasehold.cli.codes import BROKEN, INTERRUPTED, USAGE, code_of
from leasehold.cli.output import as_json, complain, tell
from leasehold.errors import LeaseholdError

COMMANDS = {
    "run": "leasehold.cli.run",
    "ls": "leasehold.cli.ls",
    "show": "leasehold.cli.show",
    "break": "leasehold.cli.break_lease",
    "gc": "leasehold.cli.collect",
    "raise-tokens": "leasehold.cli.raise_tokens",
    "doctor": "leasehold.cli.doctor",
    "manifests": "leasehold.cli.manifests",
}


class _Commands(click.Group):
    """The commands by name, imported when one is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  the signature is click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  the same
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="leasehold", message="%(prog)s %(version)s")
def program() -> None:
    """Hold leases from the shell, and see and repair what is held."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a letter gets it escaped, not a failure.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(_run(given, answers_json="--json" in _own(given)))


def _run(given: list[str], *, answers_json: bool) -> int:
    try:
        code = program.main(given, prog_name="leasehold", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "leasehold"
        _report(error, f"{error.format_message()} See: {where} --help", answers_json=answers_json)
        return USAGE
    except LeaseholdError as error:
        _report(error, "; ".join((str(error), *getattr(error, "__notes__", ()))), answers_json=answers_json)
        return code_of(error)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception:  # noqa: BLE001  Python's own code for a crash is 1, which is an answer of `show`
        traceback.print_exc()
        return BROKEN
    return code if isinstance(code, int) else 0


def _own(given: list[str]) -> list[str]:
    """The arguments before `--`: what follows belongs to the command that is run."""
    return given[: given.index("--")] if "--" in given else given


def _report(error: Exception, message: str, *, answers_json: bool) -> None:
    if answers_json:
        tell(as_json({"error": type(error).__name__, "message": message}))
    else:
        complain(message)
