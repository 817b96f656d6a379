"""The event loop of fsspec's file systems: one thread per process, one file system per account.

Callers wait, each with a deadline. A forked child starts a new loop: the parent's loop does not run in the child,
and answers on shared connections would be mixed up.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import CancelledError
from typing import Any, TypeVar, cast

T = TypeVar("T")


class _OfThisProcess:
    """The objects of one process; forked children create their own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.made: dict[Hashable, tuple[int, Any]] = {}


_ours = _OfThisProcess()


def loop() -> asyncio.AbstractEventLoop:
    """The loop; the first caller starts its thread."""
    if _ours.loop is None:
        with _ours.lock:
            if _ours.loop is None:
                started = asyncio.new_event_loop()
                threading.Thread(target=started.run_forever, name="object-storage", daemon=True).start()
                _ours.loop = started
    return _ours.loop


def of_this_process(key: Hashable, make: Callable[[], T], number: int = 0) -> T:
    """The result of ``make``, cached per ``key`` and ``number`` in this process; only the result for the latest
    number is kept.
    """
    found = _ours.made.get(key)
    if found is None or found[0] != number:
        loop()  # before the lock is taken
        with _ours.lock:
            found = _ours.made.get(key)
            if found is None or found[0] != number:
                found = _ours.made[key] = number, make()
    return cast(T, found[1])


def wait_for(call: Coroutine[Any, Any, T], deadline_s: float, on: asyncio.AbstractEventLoop | None = None) -> T:
    """The result of a call, which runs on the loop ``on``, by default on the loop of this process. Raises:
    TimeoutError after ``deadline_s``, when the call is cancelled; errors of the call.
    """
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(call, deadline_s), on or loop())
    try:
        return future.result()
    except CancelledError:
        raise TimeoutError("the call was cancelled") from None
    except BaseException:
        future.cancel()  # if the wait was interrupted; otherwise the call has ended, and this does nothing
        raise


def _forget() -> None:
    """Runs in a forked child. Without this call, file systems would close their connections at Python's exit on a
    loop that does not run in this process, and wait forever.
    """
    global _ours
    made = [each for _, each in _ours.made.values()]
    parents = {id(each) for each in made} | {id(inner) for each in made for inner in vars(each).values()}
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        kept = finalizer.peek()
        if kept is not None and id(kept[0]) in parents:
            finalizer.detach()
    _ours = _OfThisProcess()


os.register_at_fork(after_in_child=_forget)
