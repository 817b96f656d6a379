"""The pages of the documentation that are made from the code: ``docs/api.md`` and ``docs/configuration.md``."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterator
from typing import Any

from stratalog.engine.config.settings import reference_toml
from tests.golden.harness import (
    Brokers,
    Catalog,
    Cluster,
    ErasureReport,
    Groups,
    HealthFinding,
    HealthReport,
    OpenTransaction,
    Quorum,
    StatePage,
    Topics,
    Transactions,
    door,
    spark_session,
)
from tests.golden.signatures import annotation, ours, parameters, result, shown

_WIDTH = 88

_API = """\
# API

This page describes the classes and functions that programs import. `python -m tests.golden` writes it from the
code.

Every call has one shape: the topic first, then the data, then options: `append("trips", frame, key="id")`. A
parameter names its unit (`budget_s`, `memory_bytes`). `topics` limits an operation to one topic or several
(default: all), and `dry_run=True` plans it and changes nothing. The job of a method takes the same words
([the terminal](terminal.md)).

A method with the argument `check` raises `OperationFailedError` if an item failed; the error has the report. With
`check=False` it returns the report, and `raise_for_failures()` raises the error. All errors are kinds of
`StratalogError`, with Kafka's name in `code`.
"""

_SECTIONS: dict[str, tuple[Any, ...]] = {
    "Cluster": (Cluster,),
    "cluster.topics": (Topics,),
    "cluster.groups": (Groups,),
    "cluster.transactions": (Transactions, OpenTransaction),
    "cluster.brokers": (Brokers,),
    "cluster.quorum": (Quorum,),
    "cluster.catalog": (Catalog,),
    "The page of a cluster": (StatePage,),
    "Reports": (
        *(door.Report, ErasureReport, HealthReport, HealthFinding),
        *(door.Failure, door.StratalogError, door.OperationFailedError),
    ),
    "Places in a log": (
        *(door.FirstAt, door.Committed, door.OffsetSpec),
        *(door.FoundOffset, door.UnknownOffset, door.OffsetAndMetadata),
    ),
    "A Kafka cluster's tier": (door.KafkaTier, door.KafkaTierOptions),
    "The cluster file": (door.ClusterFile, door.load_cluster_file),
    "Spark sessions and the format": (door.register_format, spark_session),
}

_CONFIGURATION = """\
# Configuration

Keys have Kafka's names and defaults. Their values are part of the cluster's metadata; you can change them at any
time with `cluster.topics.alter_configs(topic, {...})` or `stratalog topics alter-configs NAME --set KEY=VALUE`,
which check them. A topic's key may also be set on the cluster, as the default for its topics.

`python -m tests.golden` writes this page.
"""


def configuration_page() -> str:
    """Each configuration key: a heading, a line of facts, its text."""
    keys: dict[str, dict[str, Any]] = tomllib.loads(reference_toml())
    parts = [_CONFIGURATION]
    for scope, title in (("cluster", "Keys of the cluster"), ("topic", "Keys of topics")):
        parts.append(f"## {title}\n")
        for key, entry in keys.items():
            if entry["scope"] == scope:
                default = str(entry["default"]).lower() if isinstance(entry["default"], bool) else entry["default"]
                unit = f" {entry['unit']}" if "unit" in entry else ""
                text = f"`{default}`{unit}" if default != "" else "nothing"
                parts += [f"### `{key}`\n", f"Default: {text}. Takes {entry['values']}.\n", f"{entry['doc']}\n"]
    return "\n".join(parts)


def api_page() -> str:
    """Each class with its fields and methods, and each function: a heading, a signature, the docstring."""
    parts = [_API]
    for title, entries in _SECTIONS.items():
        parts.append(f"## {title}\n")
        for entry in entries:
            if inspect.isclass(entry):
                parts += _class(entry, title)
            else:
                parts += [f"### `{entry.__name__}`\n", _call(entry.__name__, entry), *_text(entry)]
    return "\n".join(parts)


def _class(found: type, title: str) -> Iterator[str]:
    """One class. A group of methods is named as its users write it, ``cluster.topics``; another class by its
    name."""
    group = title == "Cluster" or (title.startswith("cluster.") and found is _SECTIONS[title][0])
    name = title.lower() if group else found.__name__
    if not group:
        yield f"### `{name}`\n"
    described = [entry for entries in _SECTIONS.values() for entry in entries if entry is not found]
    if parents := [base.__name__ for base in found.__mro__ if base in described]:
        yield f"A subclass of `{parents[0]}`.\n"
    yield from _text(found)
    bases = [base for base in found.__mro__ if ours(base) and base not in described]
    if attributes := [line for base in bases for line in _attributes(base)]:
        yield "\n".join(attributes) + "\n"
    for base in bases:
        for member_name, member in vars(base).items():
            public = not member_name.startswith("_") and inspect.getattr_static(found, member_name) is member
            heading = f"{'###' if group else '####'} `{name}.{member_name}`\n"
            if public and isinstance(member, (classmethod, staticmethod)):
                owner = f"{found.__name__}.{member_name}"
                yield heading.replace(f"{name}.{member_name}", owner)
                yield _call(owner, getattr(found, member_name))
                yield from _text(member)
            elif public and inspect.isfunction(member):
                yield heading
                yield _call(f"{name}.{member_name}", member, skip=1)
                yield from _text(member)


def _attributes(found: type) -> Iterator[str]:
    """Members of an enum, own fields and properties: one line for each, with its docstring."""
    texts = _field_texts(found)
    if issubclass(found, enum.Enum):
        yield from (_item(f"{one.name} = {one.value!r}", texts.get(one.name)) for one in found)
        return
    for name, given in inspect.get_annotations(found).items():
        if not name.startswith("_"):
            yield _item(f"{name}: {annotation(given)}{_default(found, name)}", texts.get(name))
    for name, member in vars(found).items():
        if isinstance(member, property) and not name.startswith("_"):
            yield _item(f"{name}{result(member.fget).replace(' -> ', ': ')}", member.__doc__)


def _default(owner: type, name: str) -> str:
    """The default of a field if it is a plain value. For a class with slots, only the dataclass knows
    the default.
    """
    declared = (
        {one.name: one.default for one in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    )
    default = declared.get(name, vars(owner).get(name, dataclasses.MISSING))
    plain = default is None or isinstance(default, (str, int, float, tuple))
    return f" = {shown(default)}" if plain else ""


def _field_texts(found: type) -> dict[str, str]:
    """The docstrings after fields, which only the source has."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        target = field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", None)
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[target.id] = str(after.value.value)
    return texts


def _item(code: str, text: str | None) -> str:
    return f"- `{code}`" + (f": {' '.join(text.split())}" if text else "")


def _call(name: str, found: Any, skip: int = 0) -> str:
    """A signature in a block of code, on one line or with a line for each parameter.

    The language is ``py``: tests run the blocks of the documentation that are marked ``python``.
    """
    given, answer = parameters(found)[skip:], result(found)
    line = f"{name}({', '.join(given)}){answer}"
    if len(line) > _WIDTH:
        line = "\n".join([f"{name}(", *(f"    {one}," for one in given), f"){answer}"])
    return f"```py\n{line}\n```\n"


def _text(found: Any) -> Iterator[str]:
    if found.__doc__:
        lines = inspect.cleandoc(found.__doc__).split("\n")
        if "Args:" in lines:  # the arguments become a list
            begin = lines.index("Args:")
            end = next((n for n in range(begin, len(lines)) if not lines[n]), len(lines))
            items = re.sub(r"^    (\w+): ", r"- `\1`: ", "\n".join(lines[begin + 1 : end]), flags=re.MULTILINE)
            lines[begin:end] = [re.sub(r"\n +", "\n  ", items)]
        yield "\n".join(lines) + "\n"
