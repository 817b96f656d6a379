"""Many fetches at once: those of local records never wait for those of remote ones (KIP-405, "Thread Pools": "we
have to handle remote storage operations in dedicated threads pools").

A fetch is asked first where its records are, which takes a listing of the leader, by a thread for local work; if
they are remote, it goes on by one of those for remote work. The caller gets the answers as they come. A leader
that hangs leaves half of the threads to the others, and a fetch that nobody waits for any more is not begun.
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
"""Of which the fetches from one leader take at most half."""
REMOTE_THREADS = 10
"""Kafka's remote.log.reader.threads."""
_REMOTE_LOGS_BYTES = 256 * 1024 * 1024
"""Of remote logs in memory: half a million segments. A log of more is read for each fetch."""

K = TypeVar("K", bound=tuple[str, int])
"""Topic and partition."""
R = TypeVar("R")

Remotely = Callable[[], R]
"""The rest of a fetch, whose records are remote."""


class Fetching:
    """The thread pools and caches of one driver's fetches."""

    def __init__(self) -> None:
        self.reader = RecordReader()
        self.remote_logs: BoundedCache[str, RemoteLog] = BoundedCache(_REMOTE_LOGS_BYTES)
        """By topic id, without rewrites by others. A remote log grows at its end, and loses segments that the log
        start has passed: an older one is right where it holds an offset whose object is still there."""
        self.throttle: Throttle | None = None
        """The budget of their remote reads; see ``stratalog.engine.driver.remote_quota``."""
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
        """One outcome per item, as they come; ``begin`` answers, or says what is to be done remotely. It is called
        from now on, whether or not anybody looks at the outcomes yet. An item without an answer when the clock is
        at ``deadline_s`` is ``Failed`` with StoreTimeoutError, which names ``timeout_s``, the seconds that the
        caller gave; a call that was made is left alone, and none is made from then on.

        Errors of ours are outcomes; anything else is a bug and is raised.
        """
        answers: SimpleQueue[Outcome[K, R] | BaseException] = SimpleQueue()
        remotely: set[K] = set()

        def too_late(item: K) -> Failed[K]:
            topic, partition = item
            who = "the remote tier" if item in remotely else "the leader's storage"
            return Failed(item, StoreTimeoutError(f"{topic}-{partition}: no answer of {who} in {timeout_s:.3g} s"))

        def go_on(item: K, rest: Remotely[R]) -> None:
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
                    self._remote.submit(go_on, item, outcome.value.rest)
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
                    answer = answers.get(timeout=max(0.0, deadline_s - clock.monotonic_s()))
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
    """Threads for calls of several lanes, of which each takes at most half of the threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._most = threads // 2
        self._lock = threading.Lock()
        self._taken: Counter[int | None] = Counter()
        self._waiting: defaultdict[int | None, deque[Callable[[], None]]] = defaultdict(deque)

    def submit(self, lane: int | None, call: Callable[[], None]) -> None:
        """Have it called, after those of its lane that came before it."""
        with self._lock:
            if self._taken[lane] < self._most:
                self._taken[lane] += 1
                self._threads.submit(self._call, lane, call)
            else:
                self._waiting[lane].append(call)

    def forget(self, calls: Collection[Callable[[], None]]) -> None:
        """Those of them that wait are not made."""
        with self._lock:
            for lane, waiting in self._waiting.items():
                self._waiting[lane] = deque(call for call in waiting if call not in calls)

    def _call(self, lane: int | None, call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            with self._lock:
                if self._waiting[lane]:  # behind those of other lanes that wait for a thread
                    self._threads.submit(self._call, lane, self._waiting[lane].popleft())
                else:
                    self._taken[lane] -= 1


class Remote(Generic[R]):
    """The records are remote: the rest of the work."""

    def __init__(self, rest: Remotely[R]) -> None:
        self.rest = rest
