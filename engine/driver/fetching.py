"""Runs many fetches at the same time. Fetches of local records never wait for remote ones (KIP-405, "Thread
Pools": "we have to handle remote storage operations in dedicated threads pools").

A thread for local work first finds the records of a fetch by listing the leader; if they are remote, a thread for
remote work continues. The caller gets the results as they complete. A hanging leader occupies at most half of the
threads, and a fetch that its caller has abandoned is not started.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from stratalog.engine.driver.record_reader import RecordReader
from stratalog.engine.replication.throttle import Throttle
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StoreTimeoutError
from stratalog.partitions.runner import Failed, Outcome, attempt
from stratalog.tiering.remote_log import RemoteLog

LOCAL_THREADS = 16
"""Threads for local work; the fetches from one leader take at most half of these threads."""
REMOTE_THREADS = 10
"""Kafka's remote.log.reader.threads."""
_REMOTE_LOGS_BYTES = 256 * 1024 * 1024
"""Memory for cached remote logs: half a million segments. A larger log is read for each fetch."""

K = TypeVar("K", bound=tuple[str, int])
"""Topic and partition."""
R = TypeVar("R")

Remotely = Callable[[], R]
"""The rest of a fetch whose records are remote."""


class Fetching:
    """The thread pools and caches of one driver's fetches."""

    def __init__(self) -> None:
        self.reader = RecordReader()
        self.remote_logs: BoundedCache[str, RemoteLog] = BoundedCache(_REMOTE_LOGS_BYTES)
        """The cached remote logs by topic id. They lack the later rewrites of other writers. Segments are only
        added at the end of a remote log, and only removed below the log start. So a cached log is valid for every
        offset whose object still exists, unless ``is_outdated``.
        """
        self.throttle: Throttle | None = None
        """The budget of remote reads; see ``stratalog.engine.driver.remote_quota``."""
        self._local = _Lanes(LOCAL_THREADS, "fetch-local")
        self._remote = ThreadPoolExecutor(REMOTE_THREADS, "fetch-remote")

    def run(
        self,
        begin: Callable[[K], R | Remote[R]],
        items: Sequence[K],
        leader: Callable[[K], int | None],
        clock: Clock,
        deadline_s: float,
        timeout_s: float,
    ) -> Iterator[Outcome[K, R]]:
        """Yields one outcome per item, in order of completion. ``begin`` returns the result, or the work that
        remains in the remote tier. Calls start immediately, before the caller iterates. An item without a result
        at ``deadline_s`` on the clock is ``Failed`` with StoreTimeoutError, which names ``timeout_s``, the
        caller's timeout. At that time, running calls are abandoned, and no more calls are started.

        A StratalogError is an outcome; any other exception is a bug and is raised.
        """
        answers: SimpleQueue[Outcome[K, R] | BaseException] = SimpleQueue()
        remotely: set[K] = set()

        def too_late(item: K) -> Failed[K]:
            topic, partition = item
            who = "the remote tier" if item in remotely else "the leader's storage"
            return Failed(
                item, StoreTimeoutError(f"{topic}-{partition}: {who} did not answer within {timeout_s:.3g} s")
            )

        def finish(item: K, rest: Remotely[R]) -> None:
            try:
                late = clock.monotonic_s() >= deadline_s
                answers.put(too_late(item) if late else attempt(lambda _: rest(), item))
            except BaseException as bug:
                answers.put(bug)

        def start(item: K) -> None:
            try:
                late = clock.monotonic_s() >= deadline_s
                outcome = too_late(item) if late else attempt(begin, item)
                if isinstance(outcome, Failed):
                    answers.put(outcome)
                elif isinstance(outcome.value, Remote):
                    remotely.add(item)
                    self._remote.submit(finish, item, outcome.value.rest)
                else:
                    answers.put(outcome)  # type: ignore[arg-type]  # its value is an R
            except BaseException as bug:
                answers.put(bug)

        calls = {item: partial(start, item) for item in items}
        for item, call in calls.items():
            self._local.submit(leader(item), call)

        def outcomes() -> Iterator[Outcome[K, R]]:
            waiting = dict.fromkeys(items)
            while waiting:
                try:
                    left_s = max(0.0, deadline_s - clock.monotonic_s())
                    answer = answers.get(timeout=min(left_s, threading.TIMEOUT_MAX))
                except Empty:
                    self._local.forget({calls[item] for item in waiting})
                    yield from map(too_late, waiting)
                    return
                if isinstance(answer, BaseException):
                    raise answer
                del waiting[answer.item]
                yield answer

        return outcomes()


class _Lanes:
    """Threads for calls of several lanes, each of which takes at most half of the threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._most = threads // 2
        self._lock = threading.Lock()
        self._taken: Counter[int | None] = Counter()
        self._waiting: defaultdict[int | None, deque[Callable[[], None]]] = defaultdict(deque)

    def submit(self, lane: int | None, call: Callable[[], None]) -> None:
        """Add a call to its lane; the calls of a lane start in this order."""
        with self._lock:
            if self._taken[lane] < self._most:
                self._taken[lane] += 1
                self._threads.submit(self._call, lane, call)
            else:
                self._waiting[lane].append(call)

    def forget(self, calls: Collection[Callable[[], None]]) -> None:
        """Drop the given calls that have not started."""
        with self._lock:
            for lane, waiting in self._waiting.items():
                self._waiting[lane] = deque(call for call in waiting if call not in calls)

    def _call(self, lane: int | None, call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            with self._lock:
                if self._waiting[lane]:  # after the waiting calls of other lanes
                    self._threads.submit(self._call, lane, self._waiting[lane].popleft())
                else:
                    self._taken[lane] -= 1


class Remote(Generic[R]):
    """A fetch whose records are remote: the rest of its work."""

    def __init__(self, rest: Remotely[R]) -> None:
        self.rest = rest
