"""The error for storage that answers reads but refuses writes."""

from __future__ import annotations

from typing import Self

from stratalog.partitions.errors import StorageRefusedError

_FILE = "file://"


class UnwritableStorageError(StorageRefusedError):
    """A store answers reads but refuses writes: it is read-only, full or over a quota, or its device fails."""

    def __init__(self, message: str, path: str = "", *, full: bool = False) -> None:
        """``message`` ends with the remedy, without a full stop. ``path`` (or an address) is the file that could
        not be written. ``full``: whether deleting data would help.
        """
        super().__init__(message)
        self.path, self.full = path, full
        self.broker_id: int | None = None
        """The broker of the root, if known."""

    def of_broker(self, broker_id: int) -> Self:
        """The same error, with the broker of the root added."""
        self.broker_id = broker_id
        return self

    def is_below(self, uri: str) -> bool:
        """Whether the path that could not be written is below the root at this address."""
        root = uri.removeprefix(_FILE)
        return f"{self.path.removeprefix(_FILE)}/".startswith(f"{root}/")

    def __str__(self) -> str:
        if self.broker_id is None:
            return super().__str__()
        move = ", move partitions away (`stratalog reassign`)" if self.full else ""
        fence = f"or run `stratalog brokers fence {self.broker_id}` so that other replicas lead"
        return f"{super().__str__()}{move}, {fence}"
