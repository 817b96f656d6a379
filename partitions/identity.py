"""Identifiers of topics, directories (incarnations of a root), claims, and producers without a name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

NewId = Callable[[], str]
"""A source of new ids: 32 lower-case hexadecimal digits, safe in paths of any file system."""

ID_LENGTH = 32

TopicPartition = tuple[str, int]
"""The name of a topic and the number of a partition, as callers give them."""


class TopicIdPartition(NamedTuple):
    """The id of a topic and the number of a partition, as metadata and state use them. A later topic of the same
    name has another id.
    """

    topic_id: str
    partition: int


def random_id() -> str:
    """A new random id. Nothing else in the product creates random ids."""
    return uuid.uuid4().hex  # noqa: TID251 - the one place


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of an id."""
    return len(text) == ID_LENGTH and all(c in "0123456789abcdef" for c in text)


def same_root(one: str, other: str) -> bool:
    """Whether two identities may belong to the same root. Parts that are unknown in either one are ignored."""
    if not one or not other:
        return True
    (one_object, _, one_born), (other_object, _, other_born) = one.partition("+"), other.partition("+")
    return one_object == other_object and (one_born == other_born or not one_born or not other_born)
