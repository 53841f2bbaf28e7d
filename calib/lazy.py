"""Verbs that are imported when called, or when their options are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from calib.foundation.garbage import loaded


class LazyGroup(TyperGroup):
    """A group of its own commands, and of `verbs`, which --help lists without importing them.

    `verbs` is name -> line in --help, the first of the docstring of the verb's module.
    """

    verbs: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands({**self.commands, **dict.fromkeys(self.verbs)})

    def list_commands(self, ctx: object) -> list[str]:
        """Names in their order."""
        return list(self.commands)

    def format_commands(self, ctx: object, formatter: Any) -> None:
        """The list of --help, for which no verb is imported."""
        room = formatter.width - 6 - max(map(len, self.commands))
        lines = []
        for name in self.commands:
            line = self.verbs.get(name)
            of = self.commands[name] if line is None else TyperCommand(name, help=line)
            lines.append((name, of.get_short_help_str(room)))
        with formatter.section("Commands"):
            formatter.write_dl(lines)


class Commands(dict[str, Any]):
    """Name -> command; that of a lazy verb is None until it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is None:
            self[name] = load(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The command, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default


def load(verb: str) -> Any:
    """Import a verb, with its options.

    Its module in calib/commands has a function `command`, or, where the verb has verbs of its own, a
    Typer `app`. A verb that is a keyword of Python has a module with an underscore after it (PEP 8).
    """
    name = verb.replace("-", "_") + "_" * iskeyword(verb)
    module, holder = loaded(f"calib.commands.{name}"), new_app()
    # with a callback, Typer makes a group even of a single command
    holder.callback()(lambda: None)
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=verb, help=module.__doc__)
    else:
        holder.command(verb, help=module.__doc__)(module.command)
    group = get_command(holder)
    assert isinstance(group, TyperGroup)
    return group.commands[verb]


def new_app(**attributes: Any) -> typer.Typer:
    """A Typer app with calib's defaults: no completion to install, no colours, errors as one line."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **attributes
    )
