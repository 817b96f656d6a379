"""The public API as text: the ``__all__`` of the package and everything reachable from it, error codes, the
options of every job, the configuration keys.

The text depends neither on the width of a terminal nor on the version of Python: signatures and options are
generated from ``inspect`` and ``argparse``, not from their output. It contains no names of modules.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any
from unittest.mock import patch

from stratalog.engine.config.settings import reference_toml
from tests.golden.harness import JOBS, StratalogError, door, load_everything, stratalog
from tests.golden.signatures import annotation, fields, members, ours, signature


def described_api() -> str:
    """The whole description."""
    os.environ.pop("STRATALOG_CLUSTER", None)
    load_everything()
    sections = {
        "the package, and everything reachable from it": _door(),
        "errors": _errors(),
        "jobs": _jobs(),
        "configuration": _configuration(),
    }
    return "\n".join(line for title, lines in sections.items() for line in (f"=== {title}", *lines, ""))


# --------------------------------------------------------------------------------------- names and signatures


def _door() -> Iterator[str]:
    waiting = [getattr(door, name) for name in sorted(door.__all__)]
    seen: list[Any] = []
    while waiting:
        found = waiting.pop(0)
        if found not in seen:
            seen.append(found)
            waiting += _reached(found)
    yield f"exports {', '.join(sorted(door.__all__))}"
    yield from sorted("\n".join(_class(found)) if inspect.isclass(found) else _function(found) for found in seen)


def _function(found: Any) -> str:
    return f"def {found.__name__}{signature(found)}"


def _class(found: type) -> Iterator[str]:
    """All members of a class, including inherited ones, because users need not know its bases."""
    yield f"class {found.__name__}"
    if issubclass(found, enum.Enum):
        yield f"  {', '.join(f'{member.name} = {member.value!r}' for member in found)}"
        return
    if issubclass(found, StratalogError):
        return
    if found in (getattr(door, name) for name in door.__all__) and _is_for_callers(found.__init__):
        yield f"  __init__{signature(found)}"
    for name, member in sorted(members(found)):
        if isinstance(member, property):
            yield f"  {name}: {annotation(member.fget.__annotations__.get('return'))}"
        elif isinstance(member, (classmethod, staticmethod)):
            yield f"  {type(member).__name__} {name}{signature(getattr(found, name))}"
        elif inspect.isfunction(member):
            yield f"  {name}{signature(member)}"
    for name, given in sorted(fields(found).items()):
        yield f"  {name}: {annotation(given)}"


def _is_for_callers(made_by: Any) -> bool:
    """Whether the docstring of this ``__init__`` does not name another way to get an object."""
    return inspect.isfunction(made_by) and not (made_by.__doc__ or "").startswith("Use ``")


def _reached(found: Any) -> list[Any]:
    """The classes of this project in the annotations of a function or of a class."""
    if not inspect.isclass(found):
        return _named_by(found)
    reached = [one for _, member in members(found) for one in _named_by(_unwrapped(member))]
    for base in found.__mro__:
        if ours(base):
            names = vars(sys.modules[base.__module__])
            public = {k: v for k, v in inspect.get_annotations(base).items() if not k.startswith("_")}
            reached += [one for text in public.values() for one in _classes(text, names)]
    return reached


def _unwrapped(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def _named_by(function: Any) -> list[Any]:
    if not inspect.isfunction(function):
        return []
    return [one for text in function.__annotations__.values() for one in _classes(text, function.__globals__)]


def _classes(given: Any, names: dict[str, Any]) -> list[Any]:
    text = given if isinstance(given, str) else inspect.formatannotation(given)
    found = [names.get(word) for word in re.findall(r"\b[A-Z]\w+", text)]
    return [one for one in found if inspect.isclass(one) and ours(one)]


# ------------------------------------------------------------------------------------------------ errors


def _errors() -> Iterator[str]:
    def below(error: type[StratalogError], depth: int) -> Iterator[str]:
        yield f"{'  ' * depth}{error.__name__}: {error.code}"
        for child in sorted(error.__subclasses__(), key=lambda one: one.__name__):
            yield from below(child, depth + 1)

    return below(StratalogError, 0)


# -------------------------------------------------------------------------------------------------- jobs


def _jobs() -> Iterator[str]:
    """The content of ``--help`` of each job and of its commands."""
    yield f"stratalog {' | '.join(JOBS)}"
    parsers: list[argparse.ArgumentParser] = []
    with patch.object(argparse.ArgumentParser, "print_help", lambda self, file=None: parsers.append(self)):
        for job in JOBS:
            with redirect_stdout(StringIO()):
                assert stratalog([job, "--help"]) == 0
    for parser in parsers:
        yield from _parser(parser)


def _parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield ""
    yield f"--- {parser.prog}"
    yield from (f"  | {line}".rstrip() for line in (parser.description or "").strip().splitlines())
    commands: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = action.choices
            yield f"  commands: {', '.join(commands)}"
        elif not isinstance(action, argparse._HelpAction):
            yield f"  {_option(action)}"
    for group in parser._mutually_exclusive_groups:
        names = " | ".join(_name(action) for action in group._group_actions)
        yield f"  {'one of' if group.required else 'at most one of'}: {names}"
    yield from (f"  > {line}".rstrip() for line in (parser.epilog or "").strip().splitlines())
    for command in commands.values():
        yield from _parser(command)


def _name(action: argparse.Action) -> str:
    return ", ".join(action.option_strings) or action.dest


def _option(action: argparse.Action) -> str:
    traits = {
        "metavar": action.metavar,
        "nargs": action.nargs,
        "choices": None if action.choices is None else list(action.choices),
        "default": None if action.default is argparse.SUPPRESS else action.default,
        "required": action.required or None,
        "kind": type(action).__name__.strip("_").removesuffix("Action"),
    }
    shown = ", ".join(f"{name} {value!r}" for name, value in traits.items() if value is not None)
    return f"{_name(action)} ({shown}): {action.help or ''}".rstrip()


# ------------------------------------------------------------------------------------------ configuration


def _configuration() -> Iterator[str]:
    for key, entry in tomllib.loads(reference_toml()).items():
        yield f"{key}: {', '.join(f'{name} {value!r}' for name, value in entry.items() if name != 'doc')}"
