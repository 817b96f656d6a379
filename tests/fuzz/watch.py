"""The processes that apply mutations, and the watch over their memory and time.

A process that dies, hangs or grows costs one mutation and a new process. Separate processes build the clusters
once, because a forking process may have no threads.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import keyed
from tests.fuzz.oracle import Finding
from tests.fuzz.report import Summary
from tests.fuzz.tree import Tree
from tests.fuzz.work import MOST_GROWTH_KB, MOST_S, Outcome, Work, resident_kb, runnable_s

MUTATIONS_OF_A_PROCESS = 4000
_LOOK_S = 0.1
_ADDRESSES_BYTES = 32 << 30
_ENOUGH, _DONE = 3, 0


@dataclass
class Child:
    """The state of a working process, according to its own messages."""

    pid: int
    tells: int
    stderr: Path
    base_kb: int
    index: int | None = None
    kind: str = ""
    what: str = ""
    operation: str = ""
    began_s: float = 0.0
    waited_s: float = 0.0
    rest: bytes = b""


@dataclass
class Lane:
    """Two clusters, their planned mutations, and the process that works on them."""

    trees: tuple[Tree, Tree]
    indexes: Sequence[int]
    at: int = 0
    child: Child | None = None
    ended_by: Finding | None = field(default=None)


class Watch:
    """All processes of a run. As a context manager it ends them, and removes their files."""

    def __init__(
        self,
        seed: int,
        processes: int,
        *,
        given_s: float = 3 * MOST_S,
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Build the clusters. ``given_s``: the time limit of an operation, not counting the time in which it waits
        for a processor.
        """
        self._seed = seed
        self._given_s = given_s
        self.summary = Summary(seed, tell)
        self._folder = Path(tempfile.mkdtemp(prefix="stratalog-fuzz-", dir=_in_memory()))
        folders = [self._folder / f"{number}" for number in range(processes)]
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            self._trees = pool.map(_trees, folders)
        self._lanes: list[Lane] = []

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes:
            if lane.child is not None:
                os.kill(lane.child.pid, signal.SIGKILL)
                os.waitpid(lane.child.pid, 0)
                os.close(lane.child.tells)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, indexes: Sequence[int], seconds: float | None = None) -> None:
        """Run these mutations, divided among the processes, until all are done or the time is over."""
        began = time.monotonic()
        many = len(self._trees)
        self._lanes = [Lane(trees, indexes[number::many]) for number, trees in enumerate(self._trees)]
        while any(lane.at < len(lane.indexes) for lane in self._lanes):
            if seconds is not None and time.monotonic() - began > seconds:
                break
            for lane in self._lanes:
                if lane.child is None and lane.at < len(lane.indexes):
                    self._start(lane)
            busy = {lane.child.tells: lane for lane in self._lanes if lane.child is not None}
            for tells in select.select(list(busy), [], [], _LOOK_S)[0]:
                self._hear(busy[tells])
            for lane in self._lanes:
                if lane.child is not None:
                    self._look_at(lane, lane.child)
        self.summary.seconds += time.monotonic() - began

    # ------------------------------------------------------------------------------ processes

    def _start(self, lane: Lane) -> None:
        reads, writes = os.pipe()
        stderr = lane.trees[0].folder.parent / "stderr"
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            _work(lane.trees, self._seed, lane.indexes[lane.at : lane.at + MUTATIONS_OF_A_PROCESS], writes, stderr)
        os.close(writes)
        lane.child = Child(pid, reads, stderr, resident_kb(pid))
        lane.ended_by = None

    def _hear(self, lane: Lane) -> None:
        child = lane.child
        assert child is not None
        data = os.read(child.tells, 1 << 16)
        if not data:
            self._ended(lane, child)
            return
        *lines, child.rest = (child.rest + data).split(b"\n")
        for line in lines:
            match json.loads(line):
                case ["begin", index]:
                    child.index, child.operation, child.kind, child.what = index, "", "", ""
                    self._begins(child)
                case ["what", kind, what]:
                    child.kind, child.what = kind, what
                case ["op", operation]:
                    child.operation = operation
                    self._begins(child)
                case ["end", index, kind, what, outcomes, found, peak_kb]:
                    findings = [Finding(**one) for one in found]
                    self.summary.add(Outcome(index, kind, what, Counter(outcomes), findings, peak_kb))
                    child.index = None
                    lane.at += 1

    def _begins(self, child: Child) -> None:
        child.began_s, child.waited_s = time.monotonic(), runnable_s(child.pid)

    def _look_at(self, lane: Lane, child: Child) -> None:
        if child.index is None or lane.ended_by is not None:
            return
        took_s = time.monotonic() - child.began_s
        if took_s > self._given_s and took_s - (runnable_s(child.pid) - child.waited_s) > self._given_s:
            lane.ended_by = Finding("hang", child.operation, f"still there after {took_s:.0f} s")
            os.kill(child.pid, signal.SIGUSR1)  # its stack
            time.sleep(0.5)
            os.kill(child.pid, signal.SIGKILL)
        elif (grown := resident_kb(child.pid) - child.base_kb) > 2 * MOST_GROWTH_KB:
            lane.ended_by = Finding("memory", child.operation, f"grew by {grown // 1024} MB, and was ended")
            os.kill(child.pid, signal.SIGUSR1)
            time.sleep(0.1)
            os.kill(child.pid, signal.SIGKILL)

    def _ended(self, lane: Lane, child: Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        os.close(child.tells)
        lane.child = None
        code = os.waitstatus_to_exitcode(status)
        if code in (_DONE, _ENOUGH) and child.index is None:
            return
        trace = child.stderr.read_text(errors="replace")[-6000:] if child.stderr.exists() else ""
        found = lane.ended_by or Finding("death", child.operation, f"the process ended with {code}")
        found.trace = trace
        if child.index is None:
            raise AssertionError(f"the process ended with {code} between two mutations: {trace}")
        self.summary.add(Outcome(child.index, child.kind, child.what, findings=[found]))
        lane.at += 1


def _trees(folder: Path) -> tuple[Tree, Tree]:
    """The trees without a key and with one."""
    return Tree(folder / "cluster"), Tree(folder / "keyed", keyed.TEXT)


def _work(trees: tuple[Tree, Tree], seed: int, indexes: Sequence[int], tells: int, stderr: Path) -> None:
    code = 1
    try:
        errors = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES_BYTES, _ADDRESSES_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        tempfile.tempdir = str(stderr.parent / "tmp")
        Path(tempfile.tempdir).mkdir(exist_ok=True)

        def tell(message: list[Any]) -> None:
            os.write(tells, json.dumps(message).encode() + b"\n")

        work = Work(*trees, seed, tell)
        for index in indexes:
            work.run(index)
        code = _ENOUGH
    except BaseException:
        faulthandler.disable()
        import traceback

        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def _in_memory() -> str | None:
    """A folder in memory, if there is a file system in memory with enough space."""
    folder = Path("/dev/shm")
    try:
        return str(folder) if shutil.disk_usage(folder).free > 1 << 30 and os.access(folder, os.W_OK) else None
    except OSError:
        return None
