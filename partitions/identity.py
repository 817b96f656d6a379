"""Ids of things: topics, directories (incarnations of a root), claims, producers without a name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

NewId = Callable[[], str]
"""A source of fresh ids: 32 lower-case hexadecimal digits, safe in paths of any file system."""

ID_LENGTH = 32

TopicPartition = tuple[str, int]
"""A topic's name and a partition of it: what callers say."""


class TopicIdPartition(NamedTuple):
    """A partition of the topic with this id: what metadata and state say. A later topic of the same name has
    another id.
    """

    topic_id: str
    partition: int


def random_id() -> str:
    """A fresh random id; the only place of the product that asks for one."""
    return uuid.uuid4().hex  # noqa: TID251 - the one place


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of an id."""
    return len(text) == ID_LENGTH and all(c in "0123456789abcdef" for c in text)


def same_root(one: str, other: str) -> bool:
    """Whether two identities may be those of one root: what either does not know, tells nothing."""
    if not one or not other:
        return True
    (one_object, _, one_born), (other_object, _, other_born) = one.partition("+"), other.partition("+")
    return one_object == other_object and (one_born == other_born or not one_born or not other_born)
