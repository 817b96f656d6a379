"""The roles, and the kinds of storage."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """A role with a set of permissions."""

    READER = "reader"
    PRODUCER = "producer"
    OPERATOR = "operator"


SCHEMES: Mapping[str, tuple[str, ...]] = {
    "aws": ("s3",),
    "azure": ("az", "abfss"),
    "gcs": ("gs",),
    "posix": ("file",),
}
"""The schemes of roots by kind of storage."""


def kind_of(scheme: str) -> str:
    """The kind of storage of a scheme; the scheme itself if it has none."""
    return next((kind for kind, schemes in SCHEMES.items() if scheme in schemes), scheme)
