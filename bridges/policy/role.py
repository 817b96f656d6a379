"""Roles that have rights, and the kinds of storage that give them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """A kind of work with a cluster."""

    READER = "reader"
    PRODUCER = "producer"
    OPERATOR = "operator"


SCHEMES: Mapping[str, tuple[str, ...]] = {
    "aws": ("s3",),
    "azure": ("az", "abfss"),
    "gcs": ("gs",),
    "posix": ("file",),
}
"""The roots that a policy for each kind of storage is of."""
