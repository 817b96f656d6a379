"""Group commit: combines waiting requests of several threads of a process into one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class CommitRequest(Protocol):
    """The request of one thread."""

    @property
    def over(self) -> bool:
        """Whether the request has its outcome."""
        ...

    @property
    def group(self) -> object:
        """Only requests of the same group are combined."""
        ...


W = TypeVar("W", bound=CommitRequest)


class GroupCommit(Generic[W]):
    """Makes one commit at a time. Requests that arrive during a commit share the next commit, so under load
    commits grow instead of queueing. A commit never waits for more requests. Thread-safe.
    """

    def __init__(self, most: int) -> None:
        """``most``: the maximum number of requests per commit."""
        self._most = most
        self.turn = threading.Lock()
        """A lock that is held during a commit, and by other work that must not overlap with a commit."""
        self._door = threading.Lock()
        self._waiting: list[W] = []

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        with self._door:
            return len(self._waiting)

    def commit(self, wanted: W, commit: Callable[[Sequence[W]], None]) -> None:
        """Return when ``wanted`` has its outcome. ``commit`` gives outcomes to the requests that it receives; a
        call by another thread may handle this request. A request that has no outcome because of an interruption
        gets another turn.

        Raises: errors from ``commit``.
        """
        with self._door:
            self._waiting.append(wanted)
        try:
            with self.turn:
                while not wanted.over:
                    self._commit_waiting(commit)
        finally:
            with self._door:  # after an interruption, this thread no longer waits for the request
                self._waiting = [one for one in self._waiting if one is not wanted]

    def _commit_waiting(self, commit: Callable[[Sequence[W]], None]) -> None:
        with self._door:
            group = self._waiting[0].group
            taken = [one for one in self._waiting if one.group == group][: self._most]
            gone = set(map(id, taken))
            self._waiting = [one for one in self._waiting if id(one) not in gone]
        try:
            commit(taken)
        finally:
            with self._door:
                self._waiting = [one for one in taken if not one.over] + self._waiting
