"""Reads the text of a condition: the part of Spark SQL that means the same here, and nothing else.

    condition   NOT, AND, OR and parentheses around tests
    test        column = literal, and <>, !=, <, <=, >, >=
                column [NOT] IN (literal, ...), column [NOT] BETWEEN literal AND literal
                column [NOT] LIKE 'pattern', column IS [NOT] NULL, column (a BOOLEAN)
    column      key, value, timestamp, partition, offset, or a field: value.fare, value.`a b`.c
    literal     7, -1.5, 'text', "text", X'00ff', TRUE, FALSE, DATE '2013-01-02',
                TIMESTAMP '2013-01-02T03:04:05Z', TIMESTAMP_NTZ '2013-01-02T03:04:05'

A literal must be a value of the column's type, so no cast decides what a condition selects. Text cannot contain a
backslash, because SQL dialects disagree about its meaning. Errors name a position and never repeat the text, which
is data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.rewrites.predicate import All, ColumnTest, Comparison, Path, Predicate, Some, negated

COLUMNS = ("key", "value", "timestamp", "partition", "offset")
"""The columns that a condition may name."""
_MOST_CHARACTERS = 100_000
_MOST_NESTED = 50
_MOST_IN_FLOAT = 2**24
"""A FLOAT can represent every whole number up to this number. Spark may round a greater literal to a number that a
FLOAT can represent.
"""
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<hex>[xX]'(?:[0-9a-fA-F]{2})*')
  | (?P<text>'[^'\\]*'(?!\s*')|"[^"\\]*"(?!\s*"))
  | (?P<quoted>`[^`]+`)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<mark>==|<>|!=|<=|>=|[=<>(),.])
  )""",
    re.VERBOSE | re.ASCII,
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
"""The texts of dates and times that Spark and Python read as the same value."""
_COMPARISONS = {
    **{one.value: one for one in Comparison if not one.value[0].isalpha()},
    "==": Comparison.EQUAL,
    "!=": Comparison.NOT_EQUAL,
}
_WORDS = frozenset(("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE"))
_BEFORE_TEXT = frozenset(("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int
    """The position of the first character, from 1."""

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words

    def is_mark(self, *marks: str) -> bool:
        return self.kind == "mark" and self.text in marks


def parse_where(text: str, schema: pa.Schema, what: str) -> Predicate:
    """The condition of a text, for records of ``schema`` (see ``records.schema_of``).

    Raises: InvalidCallError, which begins with ``what`` and names a position.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InvalidCallError(f"{what}: the condition has more than {_MOST_CHARACTERS:,} characters")
    return _Parser(text, schema, what).parse()


class _Parser:
    def __init__(self, text: str, schema: pa.Schema, what: str) -> None:
        self._schema, self._what = schema, what
        self._tokens = [*self._split(text)]
        self._next = 0
        self._depth = 0

    def _split(self, text: str) -> Iterator[_Token]:
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                self._refuse(at + 1, "this cannot be part of a condition; put text in quotes, without a backslash")
            assert found.lastgroup is not None
            yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup) + 1)
            at = found.end()
        yield _Token("end", "", end + 1)

    def _refuse(self, at: int, why: str) -> NoReturn:
        raise InvalidCallError(f"{self._what}: the condition, character {at}: {why}")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _took_word(self, *words: str) -> bool:
        found = self._token.is_word(*words)
        self._next += found
        return found

    def _took_mark(self, *marks: str) -> bool:
        found = self._token.is_mark(*marks)
        self._next += found
        return found

    def _need(self, found: bool, what: str) -> None:
        if not found:
            self._refuse(self._token.at, f"{what} is missing here")

    def parse(self) -> Predicate:
        found = self._either()
        if self._token.kind != "end":
            self._refuse(self._token.at, "AND, OR or the end is missing here")
        return found

    def _either(self) -> Predicate:
        return self._joined(self._both, "OR", Some)

    def _both(self) -> Predicate:
        return self._joined(self._one, "AND", All)

    def _joined(
        self, read: Callable[[], Predicate], word: str, join: Callable[[tuple[Predicate, ...]], Predicate]
    ) -> Predicate:
        parts = [read()]
        while self._took_word(word):
            parts.append(read())
        return parts[0] if len(parts) == 1 else join(tuple(parts))

    def _one(self) -> Predicate:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            self._refuse(self._token.at, f"a condition can nest at most {_MOST_NESTED} levels deep")
        try:
            if self._took_word("NOT"):
                return negated(self._one())
            if self._took_mark("("):
                found = self._either()
                self._need(self._took_mark(")"), "a closing parenthesis")
                return found
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Predicate:
        at = self._token.at
        path, kind = self._column()
        if self._took_word("IS"):
            comparison = Comparison.NOT_NULL if self._took_word("NOT") else Comparison.NULL
            self._need(self._took_word("NULL"), "NULL")
            return ColumnTest(path, comparison)
        if pa.types.is_nested(kind):
            self._refuse(at, f"a column of type {kind} has only IS NULL and IS NOT NULL; name one of its fields")
        if self._token.is_mark(*_COMPARISONS):
            return ColumnTest(path, _COMPARISONS[self._take().text], (self._literal(kind),))
        inverted = self._took_word("NOT")
        found = self._worded(path, kind)
        if found is None:
            self._need(not inverted, "IN, BETWEEN or LIKE")
            if not pa.types.is_boolean(kind):
                self._refuse(self._token.at, f"a comparison is missing here: the column has type {kind}")
            return ColumnTest(path, Comparison.EQUAL, (True,))
        return negated(found) if inverted else found

    def _worded(self, path: Path, kind: pa.DataType) -> Predicate | None:
        """A test that begins with a word after its column; None if there is no such word."""
        if self._took_word("IN"):
            self._need(self._took_mark("("), "an opening parenthesis")
            values = [self._literal(kind)]
            while self._took_mark(","):
                values.append(self._literal(kind))
            self._need(self._took_mark(")"), "a closing parenthesis, or a comma,")
            return ColumnTest(path, Comparison.IN, tuple(values))
        if self._took_word("BETWEEN"):
            low = self._literal(kind)
            self._need(self._took_word("AND"), "AND")
            high = self._literal(kind)
            return All(
                (ColumnTest(path, Comparison.AT_LEAST, (low,)), ColumnTest(path, Comparison.AT_MOST, (high,)))
            )
        if not self._token.is_word("LIKE"):
            return None
        at = self._take().at
        token = self._take()
        if token.kind != "text":
            self._refuse(token.at, "a pattern in quotes is missing here")
        pattern = token.text[1:-1]
        if pa.types.is_binary(kind):
            if "_" in pattern or not pattern.isascii():
                self._refuse(at, "a BINARY column accepts only patterns of ASCII text and %")
        elif not pa.types.is_string(kind):
            self._refuse(at, f"LIKE needs a column of text, but this column has type {kind}")
        return ColumnTest(path, Comparison.LIKE, (pattern,))

    def _column(self) -> tuple[Path, pa.DataType]:
        at = self._token.at
        fields = [self._schema.field(name) for name in COLUMNS]
        path: list[str] = []
        while True:
            token = self._token
            name = token.text[1:-1] if token.kind == "quoted" else token.text
            if token.kind not in ("word", "quoted") or (token.kind == "word" and token.text.upper() in _WORDS):
                self._refuse(token.at, "a column is missing here; each test begins with one")
            found = next((one for one in fields if one.name.lower() == name.lower()), None)
            if found is None:
                known = ", ".join(".".join([*path, one.name]) for one in fields[:20])
                why = f"the columns are {known}" if known else f"{'.'.join(path)} has no fields"
                self._refuse(token.at, f"there is no such column; {why}")
            self._next += 1
            path.append(found.name)
            if not self._took_mark("."):
                break
            fields = list(found.type) if pa.types.is_struct(found.type) else []
        if self._token.is_mark("("):
            self._refuse(at, "functions and casts are not part of a condition here")
        return tuple(path), found.type

    def _literal(self, kind: pa.DataType) -> Any:
        token = self._take()
        if token.kind == "end":
            self._refuse(token.at, "a literal is missing here")
        before = None
        if token.is_word(*_BEFORE_TEXT) and self._token.kind == "text":
            before, token = token.text.upper(), self._take()
        if token.is_word("NULL"):
            self._refuse(token.at, "a comparison with NULL selects nothing: write IS NULL or IS NOT NULL")
        try:
            value = _value_of(token, before, kind)
            pa.scalar(value, kind)
        except (ValueError, OverflowError, ArithmeticError, pa.ArrowException):
            value = None
        if value is None:
            such = _example(kind)
            self._refuse(token.at, f"this is not a literal of the column's type {kind}: give one such as {such}")
        return value


def _value_of(token: _Token, before: str | None, kind: pa.DataType) -> Any:
    """The value of a literal. For a literal of another type: None, or a ValueError."""
    is_a, text = pa.types, token.text
    match token.kind:
        case "number" if is_a.is_integer(kind):
            return int(text)
        case "number" if is_a.is_floating(kind):
            found = float(text)
            exact = kind.bit_width == 64 or not text.lstrip("-").isdigit() or abs(found) <= _MOST_IN_FLOAT
            return found if math.isfinite(found) and exact else None
        case "number" if is_a.is_decimal(kind) and "e" not in text.lower():
            return Decimal(text)
        case "hex" if is_a.is_binary(kind):
            return bytes.fromhex(text[2:-1])
        case "word" if is_a.is_boolean(kind):
            return {"TRUE": True, "FALSE": False}.get(text.upper())
        case "text":
            return _of_text(text[1:-1], before, kind)
    return None


def _of_text(text: str, before: str | None, kind: pa.DataType) -> Any:
    is_a = pa.types
    if (is_a.is_date32(kind) or is_a.is_timestamp(kind)) and not _TIME.fullmatch(text):
        return None
    if is_a.is_date32(kind) and before in (None, "DATE"):
        return date.fromisoformat(text)
    if is_a.is_timestamp(kind):
        if before not in (None, "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"):
            return None
        found = datetime.fromisoformat(text)
        return found if (found.tzinfo is None) == (kind.tz is None) else None
    if before is not None:
        return None
    if is_a.is_string(kind):
        return text
    return text.encode() if is_a.is_binary(kind) else None


def _example(kind: pa.DataType) -> str:
    is_a = pa.types
    if is_a.is_timestamp(kind):
        return "TIMESTAMP_NTZ '2013-01-02T03:04:05'" if kind.tz is None else "TIMESTAMP '2013-01-02T03:04:05Z'"
    known = (
        (is_a.is_boolean, "TRUE"),
        (is_a.is_integer, "7"),
        (is_a.is_floating, "1.5"),
        (is_a.is_decimal, f"{Decimal(1).scaleb(-getattr(kind, 'scale', 0))}"),
        (is_a.is_date32, "DATE '2013-01-02'"),
        (is_a.is_binary, "'text' or X'00ff'"),
    )
    return next((such for fits, such in known if fits(kind)), "'text'")
