"""Names, parameters and fields of functions and classes, written the same by each version of Python."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.harness import ROOT

_OWN = re.compile(r"(?:\w+\.)+(?=\w)")
_KINDS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def signature(found: Any) -> str:
    """The parameters and the result of a function, on one line."""
    return f"({', '.join(parameters(found))}){result(found)}"


def parameters(found: Any) -> list[str]:
    """Each parameter with its annotation and its default; a bare star is kept as it is."""
    parts: list[str] = []
    named = False
    for parameter in inspect.signature(found).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            parts.append("*")
        named = named or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = _KINDS.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {shown(parameter.default)}"
        parts.append(text)
    return parts


def result(found: Any) -> str:
    """The arrow and the annotation of the result; empty without an annotation."""
    given = inspect.signature(found).return_annotation
    return "" if given is inspect.Signature.empty else f" -> {annotation(given)}"


def members(found: type) -> Iterator[tuple[str, Any]]:
    """The public attributes of a class, inherited ones too."""
    names = [name for name in dir(found) if not name.startswith("_")]
    return ((name, inspect.getattr_static(found, name)) for name in names)


def fields(found: type) -> dict[str, Any]:
    """Public fields that this project's classes declare: fields of dataclasses, structs, typed dictionaries and
    tuples.
    """
    declared: dict[str, Any] = {}
    for base in reversed(found.__mro__):
        if ours(base):
            declared |= {k: v for k, v in inspect.get_annotations(base).items() if not k.startswith("_")}
    return declared


def annotation(given: Any) -> str:
    """An annotation without the names of modules."""
    return _OWN.sub("", given if isinstance(given, str) else inspect.formatannotation(given))


def shown(value: Any) -> str:
    """A default: the name of a function, the member of an enum, otherwise its ``repr``."""
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def ours(found: Any) -> bool:
    """Whether a class or a function is defined in this repository."""
    file = getattr(sys.modules.get(found.__module__), "__file__", None)
    return file is not None and ROOT in Path(file).parents and ".venv" not in Path(file).relative_to(ROOT).parts
