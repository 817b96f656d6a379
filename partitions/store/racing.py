"""Runs concurrent creates of one name, in threads or in separate processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratalog.partitions.errors import OutcomeUnknownError, StratalogError
from stratalog.partitions.store.protocol import Store

RACERS = 16
TOGETHER_WITHIN_S = 60.0
ANSWER_WITHIN_S = 600.0
_NO_ANSWER = "a writer ended without an answer, or did not end"

_STORES = "stratalog.partitions.store."
CREATED, TAKEN, UNKNOWN = "created", "taken", "unknown"


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class Racer:
    """One racer. It can be sent to another process if its store can."""

    store: Store
    number: int
    names: Sequence[str]
    staged_names: Sequence[str]
    """Names of objects whose bytes are staged before the race."""
    size_bytes: int

    def data(self) -> bytes:
        """The bytes of this racer, which no other racer writes."""
        return bytes([self.number + 1]) * self.size_bytes

    def run(self, barrier: _Barrier) -> Sequence[str]:
        """Race for each name. Returns per name ``CREATED``, ``TAKEN``, ``UNKNOWN``, or an error; staged names
        last.
        """
        outcomes = [self._create(name, barrier, in_parts=False) for name in self.names]
        return outcomes + [self._create(name, barrier, in_parts=True) for name in self.staged_names]

    def _create(self, name: str, barrier: _Barrier, *, in_parts: bool) -> str:
        staged = failure = None
        try:
            if in_parts:
                staged = self.store.stage_writer(name)
                staged.file.write(self.data())
        except StratalogError as error:
            failure = str(error)
        barrier.wait(TOGETHER_WITHIN_S)  # also after a failure, because the others wait
        if failure is not None:
            return failure
        try:
            created = self.store.create(name, self.data()) if staged is None else staged.commit()
        except OutcomeUnknownError:
            return UNKNOWN
        except StratalogError as error:
            return str(error)
        return CREATED if created else TAKEN


Race = Callable[[Sequence[Racer]], Sequence[Sequence[str]]]
"""Runs all racers at the same time, and returns their outcomes."""


def race_in_threads(racers: Sequence[Racer]) -> Sequence[Sequence[str]]:
    """Racers in threads of this process, which share its connections."""
    barrier = threading.Barrier(len(racers))
    outcomes: list[Sequence[str]] = [[_NO_ANSWER]] * len(racers)

    def run(index: int) -> None:
        outcomes[index] = racers[index].run(barrier)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(racers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def race_in_processes(racers: Sequence[Racer]) -> Sequence[Sequence[str]]:
    """Racers in processes with separate connections, like drivers."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith(_STORES)])
    barrier = context.Barrier(len(racers))
    pipes = [context.Pipe(duplex=False) for _ in racers]
    processes = [
        context.Process(target=_run, args=(racer, barrier, sender, dict(os.environ)))
        for racer, (_, sender) in zip(racers, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    outcomes: list[Sequence[str]] = []
    for receiver, _ in pipes:
        try:
            outcomes.append(receiver.recv() if receiver.poll(ANSWER_WITHIN_S) else [_NO_ANSWER])
        except EOFError:
            outcomes.append([_NO_ANSWER])
    for process in processes:
        process.terminate()
        process.join()
    return outcomes


def _run(
    racer: Racer,
    barrier: _Barrier,
    answer: multiprocessing.connection.Connection,
    environment: Mapping[str, str],
) -> None:
    os.environ.update(environment)  # the process that forked this process may have another environment
    answer.send(racer.run(barrier))
