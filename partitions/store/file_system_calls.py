"""Opens file systems of fsspec in each process, and calls them with a deadline.

The retries of adlfs and gcsfs are switched off. A file system that repeats a request by itself may report its own
object as another writer's, and the repeated request is not counted.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fsspec import AbstractFileSystem

from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, Right, StratalogError
from stratalog.partitions.store.credentials import function_named
from stratalog.partitions.store.object_loop import of_this_process, wait_for
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.requests import FailedAttempt, Requests, Wording, is_full

_ACTIONS: Mapping[Right, str] = {"list": "list", "read": "read", "create": "write", "delete": "delete"}
_HOST = "127.0.0.1"
_NOT_OF_STORAGE = (TypeError, AttributeError, NameError, StratalogError)
"""Programming errors, for which a retry is useless."""
CALLS_AT_ONCE = 32
"""The number of calls of a synchronous file system that run concurrently, not counting calls that hang."""
MOST_HUNG = 64
"""The number of calls of a synchronous file system that may still run after their deadline. If there are more, no
call is made until one ends.
"""


class CallsHangError(Exception):
    """A call was not made, because too many earlier calls hang."""


class FileSystem:
    """A file system in this process."""

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs
        self.name = f"{type(fs).__module__}.{type(fs).__qualname__}"
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE + MOST_HUNG, thread_name_prefix="file-system")
        self._lock = threading.Lock()
        self._hung = 0

    def call(self, method: str, deadline_s: float, *arguments: Any, **named: Any) -> Any:
        """The result of a method of fsspec.

        Raises: TimeoutError; CallsHangError; errors of the file system.
        """
        if self.fs.async_impl:
            return wait_for(getattr(self.fs, f"_{method}")(*arguments, **named), deadline_s, self.fs.loop)
        return self._in_a_thread(partial(getattr(self.fs, method), *arguments, **named), deadline_s)

    def _in_a_thread(self, call: Callable[[], Any], deadline_s: float) -> Any:
        """See ``call``. A thread cannot be stopped, so a call that exceeds its deadline keeps its thread until it
        ends.
        """
        if self._hung >= MOST_HUNG:
            raise CallsHangError(
                f"{self._hung} calls of {self.name} still run after their deadline. Set timeouts in the file "
                "system, or restart the process"
            )
        running = self._threads.submit(call)
        try:
            return running.result(deadline_s)
        except BaseException:
            if not running.cancel() and not running.done():
                with self._lock:
                    self._hung += 1
                running.add_done_callback(self._ends)
            raise

    def _ends(self, _: Future[Any]) -> None:
        with self._lock:
            self._hung -= 1


def open_file_system(root: str, options: StoreOptions) -> FileSystem:
    """The file system for the root at that address; ``options`` must be resolved.

    Raises: UnsupportedStoreError, InvalidCallError; NoCredentialsFoundError; errors of the caller's function.
    """
    if options.file_system is not None:
        found = function_named(options.file_system)(root, options.endpoint_url)
        if not isinstance(found, AbstractFileSystem):
            raise InvalidCallError(f"{options.file_system} returned no file system of fsspec")
        _check_uncached(options.file_system, found)
        return FileSystem(found)
    if root.startswith("gs://"):
        from stratalog.partitions.store.object_gcs import open_gcsfs

        return FileSystem(open_gcsfs(options))
    from stratalog.partitions.store.object_azure import open_adlfs

    return FileSystem(open_adlfs(options))


def _check_uncached(function: str, fs: AbstractFileSystem) -> None:
    """Raises: InvalidCallError if the file system caches listings, or wraps a file system that does."""
    if getattr(getattr(fs, "dircache", None), "use_listings_cache", False):
        raise InvalidCallError(
            f"{function} returned a {type(fs).__module__}.{type(fs).__qualname__} that caches listings, as fsspec "
            "does by default: a reader would miss the appends of other drivers. Create it with "
            "use_listings_cache=False; if its constructor does not pass that on, set "
            "fs.dircache.use_listings_cache = False"
        )
    for inner in vars(fs).values():
        if isinstance(inner, AbstractFileSystem):
            _check_uncached(function, inner)


class FileSystemRequests(Requests):
    """Calls of a file system, with the retries of ``Requests``."""

    wording = Wording(frozenset(), frozenset(), _ACTIONS, "give them to the file system")

    def __init__(self, root: str, options: StoreOptions, clock: Clock, rng: random.Random) -> None:
        super().__init__(options, clock, rng)
        self._root = root

    def client(self) -> FileSystem:
        """Raises: UnsupportedStoreError, InvalidCallError."""
        key = ("fsspec", self._root, self.options)
        return of_this_process(key, lambda: open_file_system(self._root, self.options), self.credentials_number())

    def failure_of(self, error: Exception) -> FailedAttempt | None:
        kind = type(error).__name__  # the error's text may contain an address with a signature
        if isinstance(error, _NOT_OF_STORAGE):
            return None
        if isinstance(error, CallsHangError):
            return FailedAttempt(str(error), sent=False)
        if isinstance(error, TimeoutError):
            return FailedAttempt(f"no answer within {self.options.timeout_s:g} s", timed_out=True)
        status = status_of(error)
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            status = 404
        elif isinstance(error, FileExistsError):
            status = 412
        elif isinstance(error, PermissionError):
            status = 403
        if not status:
            return FailedAttempt(kind)
        passing = (status >= 500 or status in (408, 429)) and not is_full(status, "")
        return FailedAttempt(f"{status} {kind}", status, str(status), passing)


def status_of(error: BaseException) -> int:
    """The HTTP status in a client's error or its cause; 0 if there is none."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, Mapping):  # the form of botocore
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        for name in ("status_code", "status", "code"):  # the forms of azure, aiohttp, gcsfs
            found = getattr(each, name, None)
            if isinstance(found, int):
                return found
    return 0


class SilentServer(BaseHTTPRequestHandler):
    """A server without objects, which never answers a request that would change something."""

    protocol_version = "HTTP/1.1"
    came: Counter[str]

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.came[f"{self.command} {self.path.partition('?')[0]}"] += 1
        self.close_connection = True

    do_POST = do_PUT  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def silent_server() -> Iterator[tuple[str, Callable[[], int]]]:
    """A context with the address of such a server, and the number of times that it has received its most frequent
    request.
    """
    came: Counter[str] = Counter()
    handler = type("SilentHere", (SilentServer,), {"came": came})
    with ThreadingHTTPServer((_HOST, 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://{_HOST}:{server.server_address[1]}", lambda: max(came.values(), default=0)
        finally:
            server.shutdown()
            thread.join()
