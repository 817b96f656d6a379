"""The command line of an operation, read from the method of ``Cluster`` that declares it.

The method's signature and the ``Args:`` of its docstring are the declaration: the parser, its help and the call
follow from them. A parameter without a default is a positional word of the command line. Every other parameter is
an option: ``if_exists`` is ``--if-exists``, and ``--no-`` turns off a switch that is on by default. The unit at
the end of a name determines how a value is written, and is not part of the option: ``budget_s`` is ``--budget
5m``, and ``throttle_bytes_per_s`` is ``--throttle 20MB``. A mapping is a repeated ``K=V``. If Kafka's tools have
different names for some options, a job declares these names as ``special``. The job itself adds the options that
are not parameters of a method (files, the input, the output).

The source of the method is parsed, but its module is not imported, so that ``--help`` and completion are fast.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from stratalog import Report
from stratalog.jobs.arguments import (
    PAIRS,
    Pairs,
    add_yes,
    bound,
    commands_of,
    duration,
    iso_duration,
    name,
    names,
    number,
    numbers,
    option_of,
    position,
    rate,
    size,
    text_or_file,
)
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.isolation import Isolation

R = TypeVar("R")

USUAL: Mapping[str, str] = {
    "topics": "only these topics (default: all)",
    "partitions": "only these partitions of the topics (default: all)",
    "brokers": "one or more brokers: 2,3",
    "transactional_id": "a transactional id",
    "dry_run": "print the plan; change nothing",
    "isolation": "read_committed: read up to the last stable offset, and leave out records of aborted "
    "transactions (default: read_uncommitted, as in Kafka)",
    "client_rack": "the rack of this reader. If replica.selector.class is set, the reader reads from replicas in "
    "this rack (default: spark.stratalog.client.rack, $STRATALOG_CLIENT_RACK, or client_rack of "
    "the cluster file)",
    "throttle_bytes_per_s": "copy at most SIZE per second, such as 20MB",
    "budget_s": "start no new work after this time, such as 5m",
    "if_exists": "succeed with an empty report if it does not exist",
}
"""The help texts of parameters that mean the same in all methods; a method's ``Args:`` take precedence."""
_REQUIRED: Mapping[str, str] = {
    "topics": "one or more topics: a,b",
    "topic": "the topic",
    "name": "the topic",
    "group": "the group",
}
"""The help texts of such parameters if they have no default."""

_PACKAGE = files("stratalog")
"""The source files of the package, which may be in the zip of ``--py-files``."""
_DOOR = "stratalog.engine.cluster"
_HIDDEN = ("self", "cls", "check")

Special = Mapping[str, Mapping[str, Any]]
"""Settings of parameters for the command line only, by parameter, as arguments of ``add_argument``. ``flags``
replace the option's name.
"""

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a method. ``default`` is the source text of the default, or None for a required
    parameter."""

    name: str
    annotation: str
    default: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a method in its source: the docstring before ``Args:`` and ``Raises:``, and the
    parameters."""

    text: str
    parameters: tuple[Parameter, ...]


@cache
def declared(method: str) -> Declared:
    """Return the declaration of a method. ``jobs.Jobs.elect`` names a module of ``engine/cluster``, a class and a
    method. For a bridge, the name has the complete module: ``stratalog.bridges.kafka:Kafka.mirror``. The fields of
    a dataclass are declared like parameters: ``stratalog.bridges.kafka_tier.options:KafkaTierOptions``.
    """
    module, _, name = method.rpartition(":")
    if not module:
        module, _, name = method.partition(".")
        module = f"{_DOOR}.{module}"
    class_name, _, function = name.partition(".")
    tree = ast.parse(_source(module))
    node: ast.ClassDef | ast.FunctionDef
    node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    if function:
        node = next(one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == function)
    doc = inspect.cleandoc(ast.get_docstring(node) or "")
    text, _, rest = doc.partition("\nArgs:\n")
    texts = _texts(rest.partition("\n\n")[0])
    parameters = (
        Parameter(
            name,
            "" if annotation is None else _literal(ast.unparse(annotation), tree),
            None if default is None else ast.unparse(default),
            texts.get(name) or (_REQUIRED if default is None else USUAL).get(name) or USUAL.get(name, ""),
        )
        for name, annotation, default in _given(node)
        if name not in _HIDDEN
    )
    text = re.sub(r"\s*\bSee\s+``stratalog\.[^`]*``\.", "", text.partition("\nRaises:")[0])
    return Declared(text.replace("``", "").strip(), tuple(parameters))


def _given(node: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Yield the name, the annotation and the default of each parameter of a function, or of each field of a
    dataclass."""
    if isinstance(node, ast.ClassDef):
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                yield one.target.id, one.annotation, one.value
        return
    given = node.args
    missing = len(given.args) - len(given.defaults)
    defaults = [*[None] * missing, *given.defaults, *given.kw_defaults]
    for arg, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True):
        yield arg.arg, arg.annotation, default


def _source(module: str) -> str:
    """Return the source of a module of this project."""
    *folders, name = module.split(".")[1:]
    within = _PACKAGE.joinpath(*folders)
    package = within.joinpath(name, "__init__.py")
    return (package if package.is_file() else within.joinpath(f"{name}.py")).read_text(encoding="utf-8")


def _literal(annotation: str, tree: ast.Module) -> str:
    """Return the annotation. If it is the name of a ``Literal`` that the module imports, return this
    ``Literal``."""
    name = annotation.removesuffix(" | None")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in {one.name for one in node.names}:
            module = str(node.module)
            source = _source(module) if module.startswith("stratalog.") else ""
            found = re.search(rf"^{name} = (Literal\[.*\])$", source, re.MULTILINE)
            return annotation if found is None else found[1]
    return annotation


def _texts(section: str) -> dict[str, str]:
    """Return the text of each parameter, from lines ``name: text``. A text continues on lines that are indented
    further."""
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
    """Add the parameters of ``method`` (see ``declared``) to a parser or its group: the parameters in ``only``
    (all if empty), except those in ``leave_out``.
    """
    found = {one.name: one for one in declared(method).parameters}
    for one in only or found:
        if one not in leave_out:
            action = add_parameter(parser, found[one], (special or {}).get(one, {}))
            action.declared = method  # type: ignore[attr-defined]


def add_parameter(
    parser: argparse._ActionsContainer, one: Parameter, special: Mapping[str, Any] = _NOTHING
) -> argparse.Action:
    """Add a parameter as a positional argument or as an option, under its own name."""
    given = {**_kind(one), "help": one.text.removeprefix("False: "), **special}
    if given.get("action") is Pairs:
        given["help"] += "; repeatable"
    flags: Sequence[str] = given.pop("flags", (one.name if one.default is None else option(one),))
    if flags[0].startswith("-"):
        return parser.add_argument(*flags, dest=one.name, **given)
    return parser.add_argument(*flags, **{**given, "metavar": special.get("metavar", flags[0].upper())})


def option(one: Parameter) -> str:
    """Return the option of a parameter."""
    return option_of(f"no_{one.name}" if one.default == "True" else one.name)


def _kind(one: Parameter) -> dict[str, Any]:
    """Return the syntax of a parameter, from its annotation and its unit."""
    kind = one.annotation.removesuffix(" | None")
    if kind == "bool":
        return {"action": "store_false" if one.default == "True" else "store_true"}
    if kind.startswith("Literal["):
        return {"choices": ast.literal_eval(f"({kind[8:-1]},)")}
    if one.name.endswith("_ms"):
        return {"metavar": "TIME", "type": _milliseconds}
    if one.name.endswith("_bytes_per_s"):
        return {"metavar": "SIZE", "type": rate}
    if one.name.endswith("_bytes"):
        return {"metavar": "SIZE", "type": size}
    if one.name.endswith("_s"):
        return {"metavar": "TIME", "type": duration}
    return dict(_KINDS.get(kind, _NOTHING))


_NAMES: Mapping[str, Any] = {"metavar": "A,B", "type": names}
_NUMBERS: Mapping[str, Any] = {"metavar": "N,M", "type": numbers}
_BOUND: Mapping[str, Any] = {"metavar": "BOUND", "type": bound}
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "TopicNames": _NAMES,
    "Sequence[str] | str": _NAMES,
    "Sequence[str]": _NAMES,
    "Sequence[int]": _NUMBERS,
    "Sequence[int] | int": _NUMBERS,
    "Mapping[str, str]": PAIRS,
    "Mapping[str, str | float]": PAIRS,
    "int": {"metavar": "N", "type": number},
    "float": {"metavar": "N", "type": float},
    "str": {"metavar": "NAME", "type": name},
    "Column | str": {"metavar": "EXPR"},
    "DataType | str": {"metavar": "TYPE", "type": text_or_file},
    "datetime | str": {"metavar": "TIME"},
    "timedelta": {"metavar": "PnDTnHnMnS", "type": iso_duration},
    "Bound": _BOUND,
    "Start": _BOUND,
    "Spec | datetime | str": {"metavar": "POSITION", "type": position},
    "Isolation | str": {"choices": [level.value for level in Isolation]},
}


def _milliseconds(text: str) -> int:
    return round(1000 * duration(text))


def call(method: Callable[..., R], given: argparse.Namespace, **more: Any) -> R:
    """Call a method with the given arguments, by name. The report has the failures."""
    taken = inspect.signature(method).parameters
    words = {name: value for name, value in vars(given).items() if name in taken and value is not None}
    return method(**{**words, **more}, **({"check": False} if "check" in taken else {}))


Confirm = Callable[[argparse.Namespace], str | None]
"""The irreversible step of a call, which the user must confirm; None if the call has no such step."""


def operation_job(
    name: str, description: str | None = None, *, confirm: Confirm | None = None, special: Special | None = None
) -> JobMain:
    """Return the job of ``Cluster.name``. If ``description`` is None, it is the docstring of the method."""
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


def add_command(
    command: Callable[..., argparse.ArgumentParser],
    method: str,
    name: str = "",
    *,
    only: Collection[str] = (),
    leave_out: Collection[str] = (),
    special: Special | None = None,
) -> argparse.ArgumentParser:
    """Use ``command`` (from ``commands_of``) to add the subcommand of a method, with its parameters, and the first
    sentence of its docstring. ``name`` defaults to the method's name.
    """
    found = declared(method)
    reads = all(parameter.name != "dry_run" for parameter in found.parameters)
    first = re.split(r"[.;:](?:\s|$)", " ".join(found.text.split()), maxsplit=1)[0]
    word = (name or method.rpartition(".")[2]).replace("_", "-")
    added = command(word, first[0].lower() + first[1:], reads=reads)
    add_declared(added, method, only=only, leave_out=["dry_run", *leave_out], special=special)
    return added


def group_job(
    name: str, description: str | None, commands: Sequence[str], *, confirm: Mapping[str, Confirm] | None = None
) -> JobMain:
    """Return the job of ``Cluster.name``, a group of methods, with a subcommand for each of ``commands``. The
    subcommands in ``confirm`` first ask for confirmation.
    """
    asked = confirm or {}

    def arguments(parser: argparse.ArgumentParser) -> None:
        command = commands_of(parser)
        for one in commands:
            added = add_command(command, f"{name}.{name.title()}.{one}")
            if one in asked:
                add_yes(added)

    def body(job: Job) -> Report:
        one = job.arguments.command.replace("-", "_")
        if one in asked and (what := asked[one](job.arguments)) is not None:
            job.confirm(what)
        report: Report = call(getattr(getattr(job.cluster(), name), one), job.arguments)
        return report

    return JobMain(name, description, arguments, body, runs="driver")
