"""Group commit: requests of the threads of one process are carried out in turn, together those that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class CommitRequest(Protocol):
    """A request of a thread."""

    @property
    def over(self) -> bool:
        """Whether it has its outcome."""
        ...

    @property
    def group(self) -> object:
        """Only requests of one group go together."""
        ...


W = TypeVar("W", bound=CommitRequest)


class GroupCommit(Generic[W]):
    """One commit at a time. Requests that come while a commit is under way go together with the next one, so under
    load commits grow instead of queueing. None waits for company. Thread-safe.
    """

    def __init__(self, most: int) -> None:
        """``most``: the most requests of one commit."""
        self._most = most
        self.turn = threading.Lock()
        """Held by a commit; and by whatever else has to come between two of them."""
        self._door = threading.Lock()
        self._waiting: list[W] = []

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        with self._door:
            return len(self._waiting)

    def commit(self, wanted: W, commit: Callable[[Sequence[W]], None]) -> None:
        """Return when ``wanted`` is over. ``commit`` gives the requests that it is called with their outcomes; the
        call of another thread may have given this one its own. A request that is left without one, by an
        interruption, waits for another turn.

        Raises: what ``commit`` raises.
        """
        with self._door:
            self._waiting.append(wanted)
        try:
            with self.turn:
                while not wanted.over:
                    self._commit_waiting(commit)
        finally:
            with self._door:  # interrupted: nobody waits for it any more
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
