"""A server of a cluster in this process: the page, and the endpoint for Kafka's clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class ClusterServer(ABC):
    """A server that listens until it is closed; use it in a ``with``."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening, and end all connections."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until it is closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
