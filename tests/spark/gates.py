"""Gates in storage: a call waits in its process, or kills that process, until a test opens the gate.

A gate is a file in a folder that the test and all processes of the cluster share. A process at a gate creates
another file there, and waits for a third one that opens the gate.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from stratalog.partitions.clock import Clock
from stratalog.partitions.store import StagedCopy, StagedWriter, Store, StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.protocol import StoredObject
from tests.spark.waiting import wait_for

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gate:
    """The place where a process stops."""

    call: str
    """A method of the store, or ``commit``: the naming of a staged file."""
    path: str
    """A regular expression that matches a part of the object's path (or prefix), including the root."""
    after: bool = False
    """Whether to stop after the effect of the call instead of before it."""
    times: int = 1
    """The number of calls to stop; later ones pass."""
    die: bool = False
    """Whether the process exits there."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process at a gate."""

    pid: int

    @property
    def executor(self) -> int:
        """The executor's process: the parent of the one that forks Python workers."""
        return parent(parent(self.pid))

    def kill_executor(self) -> None:
        """kill -9 of the process, which must be an executor."""
        command = _ps("command", self.executor)
        assert "CoarseGrainedExecutorBackend" in command, command
        os.kill(self.executor, signal.SIGKILL)

    def kill_worker(self) -> None:
        """kill -9 of the Python worker alone; it must be one of PySpark's."""
        assert "pyspark" in _ps("command", self.pid)
        os.kill(self.pid, signal.SIGKILL)


class Gates:
    """The gates as the test uses them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)

    def close(self, gate: Gate) -> int:
        """Close a gate, so that processes stop at it; returns its number."""
        number = next(self._numbers)
        _write(self.folder / f"{number}.gate", json.dumps(asdict(gate)))
        return number

    def stopped(self, number: int, which: int = 0) -> Stopped:
        """Wait for a process at the gate, and return it."""
        file = self.folder / f"{number}.{which}.stopped"
        wait_for(f"gate {number}", file.exists)
        return Stopped(**json.loads(file.read_text()))

    def count(self, number: int) -> int:
        """The number of processes that have reached the gate so far."""
        return len([*self.folder.glob(f"{number}.*.stopped")])

    def open(self, number: int) -> None:
        """Let all processes pass, now and later."""
        (self.folder / f"{number}.open").touch()

    def passed(self, number: int, which: int = 0) -> None:
        """Wait until the stopped process has passed the gate, or was killed there: Spark kills the losing attempt
        sooner or later.
        """
        stopped = self.stopped(number, which)
        through = self.folder / f"{number}.{which}.passed"
        wait_for(f"behind gate {number}", lambda: through.exists() or not _lives(stopped.pid))


class GatedStore(LocalStore):
    """A folder with gates."""

    def __init__(self, root: str, control: str) -> None:
        super().__init__(root)
        self._control = control

    def __reduce__(self) -> tuple[type[GatedStore], tuple[str, str]]:  # type: ignore[override]
        return GatedStore, (self.root, self._control)

    def create(self, name: str, data: bytes) -> bool:
        return self._through("create", name, lambda: super(GatedStore, self).create(name, data))

    def stage_writer(self, name: str) -> StagedWriter:
        staged: StagedWriter = self._gated(name, super().stage_writer(name))
        return staged

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        staged: StagedCopy = self._gated(name, super().stage_copy(source, source_object, name))
        return staged

    def open(self, source_object: StoredObject) -> Any:
        return self._through("open", source_object.name, lambda: super(GatedStore, self).open(source_object))

    def delete(self, names: Iterable[str]) -> None:
        listed = list(names)
        self._through("delete", " ".join(listed), lambda: super(GatedStore, self).delete(listed))

    def _gated(self, name: str, staged: Any) -> Any:
        commit = staged.commit
        staged.commit = lambda: self._through("commit", name, commit)
        return staged

    def _through(self, call: str, name: str, do: Callable[[], T]) -> T:
        for after in (False, True):
            if after:
                result = do()
            for file in sorted(Path(self._control).glob("*.gate")):
                gate = Gate(**json.loads(file.read_text()))
                if (gate.call, gate.after) == (call, after) and re.search(gate.path, f"{self.root}/{name}"):
                    self._stop(gate, file.stem)
        return result

    def _stop(self, gate: Gate, number: str) -> None:
        control = Path(self._control)
        opened = control / f"{number}.open"
        for which in range(gate.times):
            if opened.exists():
                return
            mark = control / f"{number}.{which}.stopped"
            if _write(mark, json.dumps(asdict(Stopped(os.getpid())))):
                if gate.die:
                    os._exit(9)
                wait_for(f"gate {number} to open", opened.exists)
                (control / f"{number}.{which}.passed").touch()
                return


def opener(control: Path) -> Callable[[str, StoreOptions, Clock], Store]:
    """Opens every root of a cluster with the gates of a folder."""
    return lambda uri, options, clock: GatedStore(uri.removeprefix("file://"), str(control))


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(_ps("ppid", pid))


def _ps(what: str, pid: int) -> str:
    shown = subprocess.run(
        ["ps", "-ww", "-o", f"{what}=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return shown.stdout.strip()


def _write(file: Path, text: str) -> bool:
    """Create a file atomically with its content. Returns False if it exists."""
    whole = file.with_name(f".{file.name}.{os.getpid()}")
    whole.write_text(text)
    try:
        os.link(whole, file)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            whole.unlink()
    return True


def _lives(pid: int) -> bool:
    try:
        return not _ps("stat", pid).startswith("Z")
    except subprocess.CalledProcessError:
        return False
