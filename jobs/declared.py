"""The command line of an operation, read from the method of ``Cluster`` that declares it.

The method's signature and the ``Args:`` of its docstring are the declaration: the parser, its help and the call
follow from them. A parameter without a default is a word of the command line, each other one an option:
``if_exists`` is ``--if-exists``, and ``--no-`` turns off a switch that is on by default. The unit at the end of a
name selects the syntax of the value, and is not part of the option: ``budget_s`` is ``--budget 5m``,
``throttle_bytes_per_s`` is ``--throttle 20MB``.

The source of the method is parsed, and its module not imported, so that ``--help`` and completion stay quick.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stratalog import Report
from stratalog.jobs.arguments import add_yes, commands_of, duration, name, names, number, numbers, size
from stratalog.jobs.run import Job, JobMain

USUAL: Mapping[str, str] = {
    "topics": "only these topics (default: all)",
    "partitions": "only these partitions of the topics (default: all)",
    "brokers": "one broker, or several: 2,3",
    "transactional_id": "a transactional id",
    "dry_run": "print the plan, change nothing",
}
"""The texts of parameters with the same meaning in all methods; ``Args:`` of a method takes precedence."""

_DOOR = Path(__file__).resolve().parents[1] / "engine" / "cluster"
_HIDDEN = ("self", "check")

Special = Mapping[str, Mapping[str, Any]]
"""Arguments of ``add_argument`` that only the command line has, by parameter."""

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a method. ``default`` is its source, None for a parameter that is required."""

    name: str
    annotation: str
    default: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Declared:
    """A method as its source declares it: the docstring before ``Args:`` and ``Raises:``, and the parameters."""

    text: str
    parameters: tuple[Parameter, ...]


@cache
def declared(method: str) -> Declared:
    """The declaration of ``jobs.Jobs.elect``: a module of ``engine/cluster``, a class, a method."""
    module, class_name, function = method.split(".")
    source = (_DOOR / f"{module}.py").read_text(encoding="utf-8")
    of_class = next(
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    node = next(node for node in of_class.body if isinstance(node, ast.FunctionDef) and node.name == function)
    doc = inspect.cleandoc(ast.get_docstring(node) or "")
    text, _, rest = doc.partition("\nArgs:\n")
    texts = _texts(rest.partition("\n\n")[0])
    given = node.args
    missing = len(given.args) - len(given.defaults)
    defaults = [*[None] * missing, *given.defaults, *given.kw_defaults]
    parameters = (
        Parameter(
            one.arg,
            ast.unparse(one.annotation) if one.annotation is not None else "",
            None if default is None else ast.unparse(default),
            texts.get(one.arg) or USUAL.get(one.arg, ""),
        )
        for one, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True)
        if one.arg not in _HIDDEN
    )
    text = re.sub(r"\s*\bSee\s+``stratalog\.[^`]*``\.", "", text.partition("\nRaises:")[0])
    return Declared(text.replace("``", "").strip(), tuple(parameters))


def _texts(section: str) -> dict[str, str]:
    """``name: text`` of each parameter; a text continues on lines that are indented more."""
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE)
    return {parameter: " ".join(text.split()).replace("``", "") for parameter, text in found}


def add_declared(
    parser: argparse._ActionsContainer,
    method: str,
    *,
    only: Collection[str] = (),
    leave_out: Collection[str] = (),
    special: Special | None = None,
) -> None:
    """Add the parameters of ``method`` (as of ``declared``) to a parser or its group: ``only`` these (all when
    empty), without those to ``leave_out``.
    """
    for one in declared(method).parameters:
        if one.name not in leave_out and (not only or one.name in only):
            add_parameter(parser, one, (special or {}).get(one.name, {}))


def add_parameter(
    parser: argparse._ActionsContainer, one: Parameter, special: Mapping[str, Any] = _NOTHING
) -> None:
    """Add a parameter as a word or as an option, under its own name."""
    given = {**_kind(one), "help": one.text, **special}
    if one.default is None:
        parser.add_argument(one.name, **{**given, "metavar": one.name.upper()})
    else:
        parser.add_argument(option(one), dest=one.name, **given)


def option(one: Parameter) -> str:
    """The option of a parameter."""
    word = re.sub(r"(?<=.)(_bytes_per_s|_s|_ms)$", "", one.name).replace("_", "-")
    return f"--no-{word}" if one.default == "True" else f"--{word}"


def _kind(one: Parameter) -> dict[str, Any]:
    """The syntax of a parameter, from its annotation and its unit."""
    kind = one.annotation.removesuffix(" | None")
    if kind == "bool":
        return {"action": "store_false" if one.default == "True" else "store_true"}
    if kind.startswith("Literal["):
        return {"choices": ast.literal_eval(f"({kind[8:-1]},)")}
    if one.name.endswith("_ms"):
        return {"metavar": "TIME", "type": _milliseconds}
    if one.name.endswith("_bytes_per_s") or one.name.endswith("_bytes"):
        return {"metavar": "SIZE", "type": size}
    if one.name.endswith("_s"):
        return {"metavar": "TIME", "type": duration}
    return dict(_KINDS.get(kind, _NOTHING))


_KINDS: Mapping[str, Mapping[str, Any]] = {
    "TopicNames": {"metavar": "A,B", "type": names},
    "Sequence[str] | str": {"metavar": "A,B", "type": names},
    "Sequence[int]": {"metavar": "N,M", "type": numbers},
    "Sequence[int] | int": {"metavar": "N,M", "type": numbers},
    "int": {"metavar": "N", "type": number},
    "str": {"metavar": "NAME", "type": name},
    "Column | str": {"metavar": "EXPR"},
    "Sequence[str]": {"metavar": "A,B", "type": names},
    "datetime | str": {"metavar": "TIME"},
}


def _milliseconds(text: str) -> int:
    return round(1000 * duration(text))


def call(method: Callable[..., Any], given: argparse.Namespace, **more: Any) -> Any:
    """Call a method with the given arguments, by name; its report has its failures."""
    taken = inspect.signature(method).parameters
    words = {name: value for name, value in vars(given).items() if name in taken and value is not None}
    return method(**{**words, **more}, **({"check": False} if "check" in taken else {}))


Confirm = Callable[[argparse.Namespace], str | None]
"""The irreversible step of a call, which the user must confirm; None if there is none."""


def operation_job(
    name: str, description: str | None = None, *, confirm: Confirm | None = None, special: Special | None = None
) -> JobMain:
    """The job of ``Cluster.name``. ``description`` None: the docstring of the method."""
    method = f"jobs.Jobs.{name}"

    def arguments(parser: argparse.ArgumentParser) -> None:
        add_declared(parser, method, special=special)
        if confirm is not None:
            add_yes(parser)

    def body(job: Job) -> Report:
        if confirm is not None and (what := confirm(job.arguments)) is not None:
            job.confirm(what)
        report: Report = call(getattr(job.on_workers(), name), job.arguments)
        return report

    return JobMain(name, description or declared(method).text, arguments, body)


def add_commands(
    parser: argparse.ArgumentParser,
    group: str,
    commands: Sequence[str],
    *,
    asks: Collection[str] = (),
    leave_out: Collection[str] = (),
) -> Callable[..., argparse.ArgumentParser]:
    """Add a command for each method of a ``group``, such as ``brokers``; those in ``asks`` have ``--yes``. Returns
    the function of ``commands_of``.
    """
    command = commands_of(parser)
    for one in commands:
        found = declared(method := f"{group}.{group.title()}.{one}")
        reads = all(parameter.name != "dry_run" for parameter in found.parameters)
        first = re.split(r"[.;:](?:\s|$)", " ".join(found.text.split()), maxsplit=1)[0]
        added = command(one.replace("_", "-"), first[0].lower() + first[1:], reads=reads)
        add_declared(added, method, leave_out=["dry_run", *leave_out])
        if one in asks:
            add_yes(added)
    return command


def group_job(
    name: str, description: str | None, commands: Sequence[str], *, confirm: Mapping[str, Confirm] | None = None
) -> JobMain:
    """The job of ``Cluster.name``, a group of methods: a command for each of ``commands``, some of which ask to
    ``confirm`` first.
    """
    asked = confirm or {}

    def arguments(parser: argparse.ArgumentParser) -> None:
        add_commands(parser, name, commands, asks=asked)

    def body(job: Job) -> Report:
        one = job.arguments.command.replace("-", "_")
        if one in asked and (what := asked[one](job.arguments)) is not None:
            job.confirm(what)
        report: Report = call(getattr(getattr(job.cluster(), name), one), job.arguments)
        return report

    return JobMain(name, description, arguments, body, runs="driver")
