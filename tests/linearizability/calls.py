"""Calls of drivers: the times of call and return, and the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Call:
    """One call on one object: a partition's log, or a group's offset of a partition."""

    client: int
    object: str
    kind: str
    """``append`` with ``records``, ``fetch`` or ``commit`` with an ``offset``, ``committed``."""
    call: int
    records: list[str] = field(default_factory=list)
    offset: int = 0
    answer: dict[str, Any] | None = None
    returned: int | None = None
    """None: the outcome is unknown, as the call may take effect later, or never."""


@dataclass(slots=True)
class Calls:
    """The calls of one run in order. A moment is the number of an event."""

    made: list[Call] = field(default_factory=list)
    _moment: int = 0

    def begin(self, client: int, on: str, kind: str, *, records: Iterable[bytes] = (), offset: int = 0) -> Call:
        """Record that a client makes a call now."""
        texts = [record.decode() for record in records]
        self.made.append(Call(client, on, kind, self._next(), texts, offset))
        return self.made[-1]

    def end(self, call: Call, answer: Mapping[str, Any]) -> None:
        """Record that the call returns now."""
        call.answer, call.returned = dict(answer), self._next()

    def _next(self) -> int:
        self._moment += 1
        return self._moment


def lines_of(history: str, calls: Iterable[Call]) -> Iterator[str]:
    """The lines of the file that the checker reads."""
    for call in calls:
        fields = asdict(call)
        yield json.dumps({"history": history, "return": fields.pop("returned"), **fields})
