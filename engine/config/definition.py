"""Definitions of configuration keys: scope, type, default, and valid values. Pure.

A key is a field of ``TopicConfig`` or ``ClusterConfig``, defined there by ``key``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from stratalog.partitions.amounts import parse_size
from stratalog.partitions.errors import InvalidCallError, InvalidConfigError


class Scope(StrEnum):
    """The owner of a key's value. Topic keys may also be set on the cluster, as the default of its topics."""

    CLUSTER = "cluster"
    TOPIC = "topic"


Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Takes:
    """The values that a key takes."""

    text: str
    """Description of the values, for messages after "it takes"."""
    accepts: Callable[[Any], bool]


def at_least(minimum: int) -> Takes:
    """Integers of at least ``minimum``."""
    return Takes(f"at least {minimum}", lambda value: value >= minimum)


def between(lowest: float, highest: float) -> Takes:
    """Numbers from ``lowest`` to ``highest``, both inclusive."""
    return Takes(f"from {lowest:g} to {highest:g}", lambda value: lowest <= value <= highest)


def one_of(*words: str) -> Takes:
    """Exactly these words."""
    return Takes("one of " + ", ".join(words), lambda value: value in words)


TRUE_OR_FALSE = Takes("true or false", lambda value: True)
PLAIN_NAME = Takes(
    "a name of at most 255 letters, digits, and . _ $ -, or nothing",
    lambda value: re.fullmatch(r"[A-Za-z0-9._$-]{0,255}", value) is not None,
)
"""Names of plain characters. The code that uses a name checks that it exists."""
ICEBERG_NAME = Takes(
    "the name of a pyiceberg catalog, a namespace and a table, such as lake.flights.trips, or an empty string",
    lambda value: re.fullmatch(r"(?=.{0,255}\Z)(?:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){2,})?", value) is not None,
)
SOURCE_TOPIC = Takes(
    "the ids of a Kafka cluster and of a topic, such as 4L6g3nShT-eMCtK--X86sw/oX3uHkRbTS6eNWJkT0n5kw, or an "
    "empty string",
    lambda value: re.fullmatch(r"(?:[A-Za-z0-9_.-]{1,255}/[A-Za-z0-9_-]{22})?", value) is not None,
)
TOPIC_OF_CLUSTER = Takes(
    "the id of a Kafka cluster and the name of a topic, such as 4L6g3nShT-eMCtK--X86sw/trips, or an empty string",
    lambda value: re.fullmatch(r"(?:[A-Za-z0-9_.-]{1,255}/[A-Za-z0-9._-]{1,249})?", value) is not None,
)


_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One configuration key."""

    name: str
    field_name: str
    """The attribute of ``TopicConfig`` or ``ClusterConfig``."""
    scope: Scope
    default: Value
    """The default, a value of the key's type."""
    takes: Takes
    doc: str
    unit: str | None

    def parse(self, text: str, what: str) -> Value:
        """Return the typed value of ``text``. Errors name ``what`` as the owner of the value.

        Raises: InvalidConfigError.
        """
        if not isinstance(text, str):  # from callers without a type checker
            raise InvalidConfigError(f"{what}: {self.name} = {text!r} is not a string; write it as {str(text)!r}")
        try:
            value = _READERS[type(self.default)](text.strip())
        except (ValueError, KeyError):
            value = None
        if value is None or not self.takes.accepts(value):
            raise InvalidConfigError(
                f"{what}: {self.name} = {text!r} is not valid: it takes {self.takes.text}{self._meant(text)}"
            )
        return value

    def _meant(self, text: str) -> str:
        """Return a hint for a time or size that was given with a unit. It has the same amount, as a number in the
        key's unit."""
        amount = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)", text.strip().lower())
        if self.unit == "ms" and amount is not None:
            return f". The unit is ms: {text.strip()} is {int(amount[1]) * _MS[amount[2]]}"
        if self.unit == "bytes":
            with suppress(InvalidCallError):
                return f". The unit is bytes: {text.strip()} is {parse_size(text)}"
        return f". The unit is {self.unit}" if self.unit is not None else ""

    def text(self, value: Value) -> str:
        """Return the canonical text of a value."""
        return str(value).lower() if isinstance(value, bool) else str(value)


_READERS: Mapping[type[Value], Callable[[str], Value]] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: int,
    float: float,
    str: str,
}


_UNITS = frozenset({"bytes", "files", "minutes", "ms", "partitions", "records", "replicas"})


def key(
    default: Value, takes: Takes = TRUE_OR_FALSE, *, doc: str, unit: str | None = None, name: str | None = None
) -> Any:
    """Define a dataclass field as a configuration key. By default, the key is the field name with dots, and the
    last word of the field name is the unit if it is one; ``name`` and ``unit`` override them.
    """
    return field(
        default=default, metadata={"default": default, "takes": takes, "doc": doc, "unit": unit, "name": name}
    )


def keys_of(config: type, scope: Scope) -> Mapping[str, ConfigDef]:
    """Return the keys among the fields of a dataclass, sorted by name."""
    found = [
        ConfigDef(
            name=one.metadata["name"] or one.name.replace("_", "."),
            field_name=one.name,
            scope=scope,
            default=one.metadata["default"],
            takes=one.metadata["takes"],
            doc=one.metadata["doc"],
            unit=one.metadata["unit"] or _unit(one.name),
        )
        for one in fields(config)
    ]
    return {definition.name: definition for definition in sorted(found, key=lambda definition: definition.name)}


def _unit(field_name: str) -> str | None:
    last = field_name.rpartition("_")[2]
    return last if last in _UNITS else None
