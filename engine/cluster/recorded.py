"""The frame of every method of ``Cluster`` that is an operation. It logs a message when the operation begins and
when it ends, and writes an event to ``__operations`` if the operation changes something. No other module writes
events.

appends, mirrors, offsets, transactions     no event: the log records them, and an event would double the cost
dry runs, bad calls                         no event
maintain                                    one per round that did something, or failed in a new way
destructive operations                      one before they act, and one after
everything else                             one, if it changed anything

**What changes the cluster returns a report, and an operation that failed raises.** A method with the argument
``check`` is an operation: if its report has a failure, it raises OperationFailedError. The error has the report,
which includes the finished work. ``check=False`` returns the report; ``report.ok`` shows whether it succeeded. A
dry run raises an error for anything that the operation would be unable to do. A method that returns a report and
has no ``check`` only reads (``verify``, ``compare``, ``health``, ``describe``, ``drill``, ``list``): if it finds
damage, it has done its job, and returns the report. The findings are failures of the report, and ``report.ok`` is
False. Only ``checked`` decides this.

An operation never fails because of its event: if the event cannot be written, the report has a note; without a
report, a warning is logged. The module logs no other warnings, because Python prints warnings if logging is not
configured.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

from stratalog.engine.driver.deletions import with_deletions
from stratalog.engine.driver.figures import ROUND, figures, has_changed, have_written
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.running import OPERATION
from stratalog.engine.records.state_log import append_event
from stratalog.engine.state.operations import DONE, ENDED, FAILED, STARTED, Event, event_time
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.printable import printable
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.store import StoreCounts
from stratalog.partitions.store.address import redacted
from stratalog.partitions.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
R = TypeVar("R")

Given = Mapping[str, object]
"""Arguments by name."""

_MOST_CHARACTERS = 4000
"""The greatest number of characters of the arguments in an event."""
_MOST_NOTES = 50
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
"""A message of ``inspect`` about an argument that does not exist."""

_log = logging.getLogger("stratalog.engine.operations")


class _Door(Protocol):
    _ports: Ports


def never(given: Given) -> bool:
    """The operation destroys nothing."""
    return False


def always(given: Given) -> bool:
    """The operation destroys something irreversibly."""
    return True


def forced(given: Given) -> bool:
    """The operation is destructive if it is forced."""
    return bool(given.get("force") or given.get("unclean"))


def keeps_one(given: Given) -> bool:
    """The operation is destructive if it keeps one of two histories."""
    return given.get("keep") is not None


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method with one addition: it raises an error for the failures of its report, unless it is called
    with ``check=False``.

    Raises: OperationFailedError.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result = method(*args, **kwargs)
        if isinstance(result, Report) and kwargs.get("check", True):
            result.raise_for_failures()
        return result

    return call


def operation(
    name: str,
    *,
    destroys: Callable[[Given], bool] = never,
    leaves_event: bool = True,
    redacted: tuple[str, ...] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a method of ``Cluster`` the operation ``name``. ``destroys`` decides by the
    arguments whether a call is destructive. ``redacted`` names arguments to omit from logs and events, such as
    records, or settings with passwords. A method with the argument ``check`` is ``checked``; a method without it
    only reads."""

    def framed(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)
        if not signature.parameters.keys() >= set(redacted):  # a str, or the name of no argument, redacts nothing
            raise TypeError(f"{method.__qualname__}: redacted = {redacted!r} are not its arguments")

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            self = cast("_Door", args[0])
            try:
                given = dict(signature.bind(*args, **kwargs).arguments)
            except TypeError as error:
                raise TypeError(_misread(method, self, signature, error)) from None
            for name_of in redacted:
                given.pop(name_of, None)
            frame = Frame(self._ports, name, given, destroys=destroys(given), leaves_event=leaves_event)
            with _described(getattr(self, "_spark", None), name):
                return frame.around(lambda: method(*args, **kwargs))

        return checked(call) if "check" in signature.parameters else call

    return framed


def _misread(method: Callable[..., object], door: object, signature: inspect.Signature, error: TypeError) -> str:
    """Return the message for invalid arguments. It shows the method as users call it, and suggests the closest
    valid argument."""
    of, _, name = method.__qualname__.rpartition(".")
    group = f"{of.lower()}." if type(door).__name__ == of else ""  # the others are methods of the cluster itself
    found = _UNEXPECTED.search(str(error))
    hint = "" if found is None else did_you_mean(found[1], list(signature.parameters)[1:])
    return f"cluster.{group}{name}() {error}{hint}"


def _described(spark: SparkSession | None, name: str) -> AbstractContextManager[None]:
    """Show the operation's name on Spark's own pages."""
    if spark is None:
        return nullcontext()
    from stratalog.engine.spark.described import described

    return described(spark, name)


class Frame:
    """One call of an operation."""

    def __init__(
        self, ports: Ports, name: str, given: Given, *, destroys: bool = False, leaves_event: bool = True
    ) -> None:
        self._ports, self._name = ports, name
        self._given = given
        self._destroys = destroys
        self._leaves_event = leaves_event and ports.events is not None and not given.get("dry_run")
        self._notes: list[str] = []

    def around(self, act: Callable[[], R]) -> R:
        """Return the result of ``act``. If an event could not be written, the report has a note."""
        ports = self._ports
        token = OPERATION.set(self._name)
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s: begins: %s", self._name, printable(arguments_text(self._given)))
        began_s, before = ports.clock.monotonic_s(), ports.storage.counts()
        topics = ports.metadata.last_known.image.topic_ids
        try:
            if self._destroys:
                self._leave(STARTED, None, (), {}, None)
            result = act()
            if isinstance(result, Report) and result.failures:
                result = cast("R", with_deletions(result, ports.metadata, topics))
        except Exception as error:
            self._failed(error, began_s, ports.storage.counts() - before)
            raise
        finally:
            OPERATION.reset(token)
        return self._ended(result, began_s, ports.storage.counts() - before)

    def _failed(self, error: Exception, began_s: float, did: StoreCounts) -> None:
        code = error.code if isinstance(error, StratalogError) else type(error).__name__
        message = f"{code}: {error}"
        _log.info("%s: failed: %s", self._name, printable(redacted(message)))
        if self._destroys or have_written(did):
            self._leave(ENDED, FAILED, [message], {}, began_s)
        self._warn()

    def _warn(self) -> None:
        for note in self._notes:
            _log.warning("%s: %s", self._name, printable(note))

    def _ended(self, result: R, began_s: float, did: StoreCounts) -> R:
        if not isinstance(result, Report):
            _log.info("%s: done", self._name)
            if self._destroys or have_written(did):
                self._leave(ENDED, DONE, (), {}, began_s)
            self._warn()
            return result
        _log.info("%s: ends: %s", self._name, result.headline)
        if self._leaves_event and (self._destroys or self._has_event(result)):
            lines = [*map(str, result.failures), *result.notes]
            self._leave(ENDED, DONE if result.ok else FAILED, lines, result, began_s)
        return replace(result, notes=[*result.notes, *self._notes]) if self._notes else result

    def _has_event(self, report: Report) -> bool:
        log = self._ports.events
        assert log is not None
        if report.operation != ROUND:
            return has_changed(report) or not report.ok
        before, log.failing = log.failing, frozenset(f"{one.item} {one.code}" for one in report.failures)
        return has_changed(report) or not log.failing <= before

    def _leave(
        self,
        phase: str,
        outcome: str | None,
        notes: Sequence[str],
        of: Report | Mapping[str, int],
        began_s: float | None,
    ) -> None:
        """Write an event; if that fails, note the reason."""
        ports, log = self._ports, self._ports.events
        if not self._leaves_event or log is None:
            return
        lasted_ms = None if began_s is None else round(1000 * (ports.clock.monotonic_s() - began_s))
        try:
            image = ports.metadata.image()
            event = Event(
                time=event_time(ports.clock.now_ms()),
                operation=self._name,
                phase=phase,
                outcome=outcome,
                user=log.origin.user,
                host=log.origin.host,
                job=log.origin.job,
                run=log.origin.run,
                cluster=ports.storage.file.cluster_id,
                version=VERSION,
                arguments=arguments_text(self._given),
                totals=figures(of, image) if isinstance(of, Report) else of,
                notes=tuple(redacted(note) for note in notes[:_MOST_NOTES]),
                duration=lasted_ms,
            )
            append_event(*ports.for_records, image, event)
        except (StratalogError, OSError) as error:
            code = error.code if isinstance(error, StratalogError) else type(error).__name__
            self._notes.append(f"the history has no {phase!r} event of this operation: {code}: {error}")


def arguments_text(given: Given) -> str:
    """Return the arguments as the text of a JSON object, without arguments that have no value, and without logins
    in addresses. A long text is truncated."""
    shown = {
        name: _plain(value)
        for name, value in given.items()
        if name not in ("self", "dry_run", "check") and value is not None and value is not False
    }
    text = json.dumps(shown, default=lambda value: type(value).__name__, allow_nan=False)
    return text if len(text) <= _MOST_CHARACTERS else json.dumps({"cut_off": text[:_MOST_CHARACTERS]})


def _plain(value: object) -> object:
    match value:
        case bool() | int():
            return value
        case float() | timedelta():
            return str(value)
        case datetime():
            return value.isoformat()
        case str():
            return redacted(value)
        case Mapping():
            return {_name(key): _plain(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(one) for one in value]
    return type(value).__name__ if value is not None else None


def _name(key: object) -> str:
    return "-".join(map(str, key)) if isinstance(key, tuple) else str(key)
