"""What a configuration key is: its type, where it may be set, its default, and what it takes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from partitions.errors import InvalidConfigError


class ConfigType(StrEnum):
    """How the text of a value is read."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DOUBLE = "double"
    STRING = "string"


class Scope(StrEnum):
    """Where a key may be set. Topic keys may be set on the cluster too, as the default of its topics."""

    CLUSTER = "cluster"
    TOPIC = "topic"


Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A validator: integers from ``minimum`` on."""

    minimum: int

    def __call__(self, value: Value) -> bool:
        return isinstance(value, int) and value >= self.minimum

    def __str__(self) -> str:
        return f"at least {self.minimum}"


@dataclass(frozen=True, slots=True)
class Between:
    """A validator: numbers from ``lowest`` to ``highest``, both included."""

    lowest: float
    highest: float

    def __call__(self, value: Value) -> bool:
        return isinstance(value, int | float) and self.lowest <= value <= self.highest

    def __str__(self) -> str:
        return f"from {self.lowest:g} to {self.highest:g}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A validator: exactly these words."""

    words: tuple[str, ...]

    def __call__(self, value: Value) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class TrueOrFalse:
    """A validator: every boolean."""

    def __call__(self, value: Value) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class ClassName:
    """A validator: the full name of a class, or nothing. Whether there is one is found where it is used."""

    def __call__(self, value: Value) -> bool:
        parts = str(value).split(".")
        return value == "" or (len(parts) > 1 and all(part.isidentifier() for part in parts))

    def __str__(self) -> str:
        return "the full name of a class, or nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One key."""

    name: str
    type: ConfigType
    default: Value
    scope: Scope
    validator: AtLeast | Between | ClassName | OneOf | TrueOrFalse
    doc: str
    unit: str | None = None

    @property
    def field_name(self) -> str:
        """The attribute of ``TopicConfig`` or ``ClusterConfig``."""
        return self.name.replace(".", "_")

    def parse(self, text: str, what: str) -> Value:
        """The typed value of ``text``; ``what`` says whose it is.

        Raises: InvalidConfigError.
        """
        if not isinstance(text, str):  # of callers without a type checker
            raise InvalidConfigError(f"{what}: {self.name} = {text!r} is no text: write it as {str(text)!r}")
        value = _READERS[self.type](text.strip())
        if value is None or not self.validator(value):
            raise InvalidConfigError(f"{what}: {self.name} = {text!r} is not valid: it takes {self.validator}")
        return value

    def text(self, value: Value) -> str:
        """The canonical text of a value."""
        return str(value).lower() if isinstance(value, bool) else str(value)


def _read_boolean(text: str) -> Value | None:
    return {"true": True, "false": False}.get(text.lower())


def _read_integer(text: str) -> Value | None:
    try:
        return int(text)
    except ValueError:
        return None


def _read_double(text: str) -> Value | None:
    try:
        return float(text)
    except ValueError:
        return None


_READERS: Mapping[ConfigType, Callable[[str], Value | None]] = {
    ConfigType.BOOLEAN: _read_boolean,
    ConfigType.INTEGER: _read_integer,
    ConfigType.DOUBLE: _read_double,
    ConfigType.STRING: str,
}


def integer(scope: Scope, name: str, default: int, minimum: int, unit: str | None, doc: str) -> ConfigDef:
    """A key that takes integers from ``minimum`` on."""
    return ConfigDef(
        name=name,
        type=ConfigType.INTEGER,
        default=default,
        scope=scope,
        validator=AtLeast(minimum),
        unit=unit,
        doc=doc,
    )


def boolean(scope: Scope, name: str, default: bool, doc: str) -> ConfigDef:
    """A key that takes true or false."""
    return ConfigDef(
        name=name,
        type=ConfigType.BOOLEAN,
        default=default,
        scope=scope,
        validator=TrueOrFalse(),
        doc=doc,
    )


def word(scope: Scope, name: str, default: str, words: tuple[str, ...], doc: str) -> ConfigDef:
    """A key that takes one of some words."""
    return ConfigDef(
        name=name,
        type=ConfigType.STRING,
        default=default,
        scope=scope,
        validator=OneOf(words),
        doc=doc,
    )


def table(*definitions: ConfigDef) -> Mapping[str, ConfigDef]:
    """Definitions by name, in the order of their names."""
    return {definition.name: definition for definition in sorted(definitions, key=lambda d: d.name)}
