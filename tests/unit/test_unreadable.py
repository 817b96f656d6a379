"""Damage in the errors of readers: every kind is named, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog.engine.replication.unreadable import REMEDY, with_remedy
from stratalog.partitions.errors import CorruptionError
from stratalog.tiering.foreign_commits import ForeignWriteError


def kinds(of: type[CorruptionError]) -> Iterator[type[CorruptionError]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


@pytest.mark.parametrize("kind", sorted(set(kinds(CorruptionError)), key=lambda kind: kind.__name__))
def test_damage_of_any_kind_keeps_its_kind_and_broker(kind: type[CorruptionError]) -> None:
    found = with_remedy(kind("one", broker_id=3), kind("two"))
    assert (type(found), found.broker_id) == (kind, 3)
    assert str(found).startswith("one; two; ")
    assert str(found).endswith(REMEDY)
    assert issubclass(ForeignWriteError, CorruptionError), "the kind that takes more than others"
