"""Many fetches at once: those of local records never wait for those of remote ones (KIP-405, "Thread Pools": "we
have to handle remote storage operations in dedicated threads pools").

A fetch is asked first where its records are, which takes a listing of the leader, by a thread for local work; if
they are remote, it goes on by one of those for remote work. Whoever asked gets the answers as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from engine.reading.cache import BoundedCache
from engine.reading.records import RecordReader
from engine.replication.throttle import Throttle
from partitions.clock import Clock
from partitions.errors import StoreTimeoutError
from partitions.runner import Failed, Outcome, attempt
from tiering.remote_log import RemoteLog

LOCAL_THREADS = 8
REMOTE_THREADS = 10
"""Kafka's remote.log.reader.threads."""
_REMOTE_LOGS = 64
_ENDS = 8192

K = TypeVar("K", bound=tuple[str, int])
"""Topic and partition."""
R = TypeVar("R")

Remotely = Callable[[], R]
"""The rest of a fetch, whose records are remote."""


class Fetching:
    """What one driver keeps for its fetches: threads, and what was read of late."""

    def __init__(self) -> None:
        self.reader = RecordReader()
        self.remote_logs: BoundedCache[str, RemoteLog] = BoundedCache(_REMOTE_LOGS)
        """By topic id. A remote log grows at its end, and loses segments that the log start has passed: an older
        one is right where it holds an offset whose object is still there."""
        self.ends: BoundedCache[tuple[str, str, str], int] = BoundedCache(_ENDS)
        """Where the last appends of leaders end: by store, name and version of the file."""
        self.throttle: Throttle | None = None
        """What their remote reads spend from; see ``engine.remote_quota``."""
        self._local = ThreadPoolExecutor(LOCAL_THREADS, "fetch-local")
        self._remote = ThreadPoolExecutor(REMOTE_THREADS, "fetch-remote")

    def run(
        self,
        begin: Callable[[K], R | Remote[R]],
        items: Sequence[K],
        clock: Clock,
        deadline_s: float,
        timeout_s: float,
    ) -> Iterator[Outcome[K, R]]:
        """One outcome per item, as they come; ``begin`` answers, or says what is to be done remotely. An item
        without an answer when the clock is at ``deadline_s`` is ``Failed`` with StoreTimeoutError, which
        names ``timeout_s``, the seconds that the caller gave; its call is left alone.

        Errors of ours are outcomes; anything else is a bug and is raised.
        """
        answers: SimpleQueue[Outcome[K, R] | BaseException] = SimpleQueue()
        remotely: set[K] = set()

        def go_on(item: K, rest: Remotely[R]) -> None:
            try:
                answers.put(attempt(lambda _: rest(), item))
            except BaseException as bug:
                answers.put(bug)

        def start(item: K) -> None:
            try:
                outcome = attempt(begin, item)
                if isinstance(outcome, Failed):
                    answers.put(outcome)
                elif isinstance(outcome.value, Remote):
                    remotely.add(item)
                    self._remote.submit(go_on, item, outcome.value.rest)
                else:
                    answers.put(outcome)  # type: ignore[arg-type]  # its value is an R
            except BaseException as bug:
                answers.put(bug)

        for item in items:
            self._local.submit(start, item)
        waiting = dict.fromkeys(items)
        while waiting:
            try:
                answer = answers.get(timeout=max(0.0, deadline_s - clock.monotonic_s()))
            except Empty:
                for item in waiting:
                    topic, partition = item
                    who = "the remote tier" if item in remotely else "the leader's storage"
                    yield Failed(
                        item, StoreTimeoutError(f"{topic}-{partition}: no answer of {who} in {timeout_s:.3g} s")
                    )
                return
            if isinstance(answer, BaseException):
                raise answer
            del waiting[answer.item]
            yield answer


class Remote(Generic[R]):
    """The records are remote: what is left to be done."""

    def __init__(self, rest: Remotely[R]) -> None:
        self.rest = rest
