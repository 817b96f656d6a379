"""Measures the tests: every phase of every test, every fixture, every collection.

``tests/conftest.py`` loads this module as a plugin. Each process of a run writes its own file of JSON lines into
``.cache/durations``, and ``make test`` empties the folder before its first run. A line has seconds of the clock
and of processors; the latter include JVMs, servers and other processes that the tests started. ``make slowest``
prints the processor time by part of the run and kind, the tests, files and fixtures that took most of it, and
tests of more than five seconds without a mark ``long``:

    python -m tests.durations --rows 30
    python -m tests.durations --slower      writes tests/slower.txt, the tests that make check leaves out
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.depth import LEFT_OUT, SLOWER

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "durations"
LONG_S = 5.0
SLOWER_S = 0.05
JVMS = ("spark", "connect_url", "standalone")
SERVERS = ("s3_endpoint", "azure_endpoint", "gcs_endpoint", "kms", "clients")


class Processors:
    """Seconds of processor time of this process, of the processes that it started, and of the processes that these
    started.
    """

    AGE_S = 0.05
    """The time for which a look at the living descendants, which takes milliseconds, is reused."""

    def __init__(self) -> None:
        self._looked, self._living, self._ended = 0.0, 0.0, 0.0

    def seconds(self) -> float:
        """A process whose parent did not wait for it counts until it ends."""
        times = os.times()
        ended = times.children_user + times.children_system
        return time.process_time() + ended + self._of_living(ended)

    def _of_living(self, ended: float) -> float:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0.0
        if ended != self._ended or time.perf_counter() - self._looked > self.AGE_S:
            self._living, self._ended = of_descendants(os.getpid()), ended
            self._looked = time.perf_counter()
        return self._living


def of_descendants(process: int) -> float:
    """Seconds of processor time of the living descendants of a process, and of the processes that these have
    waited for; 0 on a system without ``/proc``.
    """
    children: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = stat.read_text(errors="replace").partition(" ")
        except OSError:  # the process has ended
            continue
        fields = rest.rpartition(")")[2].split()
        children[int(fields[1])].append((int(number), sum(map(int, fields[11:15]))))
    ticks, parents = 0, [process]
    while parents:
        for number, took in children[parents.pop()]:
            ticks += took
            parents.append(number)
    return ticks / os.sysconf("SC_CLK_TCK")


class Recorder:
    """Writes a line for each measured item: seconds of the clock, and of processors."""

    def __init__(self, out: TextIO, part: str) -> None:
        self._out, self._part, self._processors = out, part, Processors()
        self._began = time.perf_counter()

    def _write(self, kind: str, name: str, wall: float, cpu: float, **more: object) -> None:
        took = {"wall": round(wall, 4), "cpu": round(max(cpu, 0), 4)}
        self._out.write(json.dumps({"kind": kind, "name": name, **took, **more}) + "\n")
        self._out.flush()

    def _timed(self, kind: str, name: str, **more: object) -> Iterator[Any]:
        wall, cpu = time.perf_counter(), self._processors.seconds()
        try:
            return (yield)
        finally:
            self._write(kind, name, time.perf_counter() - wall, self._processors.seconds() - cpu, **more)

    def end(self) -> None:
        """Write the line of the whole process, which names its part of the run."""
        self._write("process", self._part, time.perf_counter() - self._began, self._processors.seconds())

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[Any]:
        return (yield from self._timed("collection", ""))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        return (yield from self._timed("fixture", fixturedef.argname, place=fixturedef.baseid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[Any]:
        return (yield from self._timed("setup", item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        spark = item.get_closest_marker("spark") is not None
        long = item.get_closest_marker("long") is not None
        quick = not any(item.get_closest_marker(mark) for mark in LEFT_OUT["check"])
        return (yield from self._timed("call", item.nodeid, spark=spark, long=long, quick=quick))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[Any]:
        return (yield from self._timed("teardown", item.nodeid))


def pytest_configure(config: pytest.Config) -> None:
    if config.option.collectonly:
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    if worker == "main" and config.getoption("numprocesses", None):
        return  # the workers record the items
    FOLDER.mkdir(parents=True, exist_ok=True)
    out = (FOLDER / f"{time.time_ns()}-{worker}.jsonl").open("w", encoding="utf-8")  # noqa: TID251 - a file's name
    config.add_cleanup(out.close)
    recorder = Recorder(out, part_of(config))
    config.add_cleanup(recorder.end)
    config.pluginmanager.register(recorder, "durations")


def part_of(config: pytest.Config) -> str:
    """The name of this part of a run: the marks that it selects, and where it runs."""
    asked = config.option.markexpr or "all"
    connect = " on Connect" if os.environ.get("STRATALOG_TEST_CONNECT") else ""
    platform = Path(sys.prefix)
    return f"{asked}{connect}{f' on Spark {platform.name}' if platform.parent.name == 'matrix' else ''}"


def kind_of(line: dict[str, Any]) -> str:
    """The kind of work that a line's time was spent on."""
    match line["kind"]:
        case "fixture" if line["name"] in JVMS:
            return "start of JVMs"
        case "fixture" if line["name"] in SERVERS:
            return "start of servers"
        case "fixture":
            return "set-up of clusters and other fixtures"
        case "call":
            return "Spark tests" if line["spark"] else "other tests"
        case "setup":
            return "set-up, with all fixtures"
        case "process":
            return "everything"
        case kind:
            return str(kind)


def report(files: Sequence[Sequence[dict[str, Any]]], rows: int) -> Iterator[str]:
    """The tables of these files, as text."""
    parts: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    tests: Counter[str] = Counter()
    of_files: Counter[str] = Counter()
    fixtures: Counter[str] = Counter()
    walls: Counter[str] = Counter()
    explained = set()
    for lines in files:
        part = next((line["name"] for line in lines if line["kind"] == "process"), "a part that was stopped")
        for line in lines:
            kind, cpu = kind_of(line), line["cpu"]
            parts[part][kind].update(wall=line["wall"], cpu=cpu, count=1)
            if line["kind"] == "fixture":
                fixtures[f"{line['place']}::{line['name']}"] += cpu
            elif line["kind"] in {"setup", "call", "teardown"}:
                tests[line["name"]] += cpu
                of_files[line["name"].partition("::")[0]] += cpu
            if line["kind"] == "call":
                walls[line["name"]] += line["wall"]
                if line["long"]:
                    explained.add(line["name"])
    for part, kinds in parts.items():
        yield f"{part:50} {'times':>7} {'wall s':>9} {'cpu s':>9}"
        for kind, sums in sorted(kinds.items(), key=lambda each: -each[1]["cpu"]):
            yield f"  {kind:48} {sums['count']:7,} {sums['wall']:9.1f} {sums['cpu']:9.1f}"
        yield ""
    for title, took in (("tests", tests), ("files", of_files), ("fixtures", fixtures)):
        yield f"{title} that took most processor time, s"
        for name, cpu in took.most_common(rows):
            yield f"{cpu:9.1f}  {name}"
        yield ""
    unexplained = [(name, wall) for name, wall in walls.most_common() if wall > LONG_S and name not in explained]
    yield f"over {LONG_S:.0f} s on the wall without a mark that says why: {len(unexplained)}"
    for name, wall in unexplained:
        yield f"{wall:9.1f}  {name}"


def slower(files: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """The quick tests whose cases take more than ``SLOWER_S`` of processor time on average."""
    took: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for line in (line for lines in files for line in lines):
        if line["kind"] in {"setup", "call", "teardown"}:
            test = line["name"].partition("[")[0]
            took[test] += line["cpu"]
            if line["kind"] == "call" and line["quick"]:
                cases[test] += 1
    return sorted(test for test, count in cases.items() if took[test] / count > SLOWER_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of the last ``make test``. Returns exit status 1 if there was none."""
    parser = argparse.ArgumentParser(prog="python -m tests.durations", description=__doc__)
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--slower", action="store_true", help=f"write {SLOWER.name}")
    given = parser.parse_args(argv)
    files = sorted(given.folder.glob("*.jsonl"))
    if not files:
        print(f"{given.folder} has no durations: run make test first", file=sys.stderr)
        return 1
    lines = [[json.loads(line) for line in file.open(encoding="utf-8")] for file in files]
    if given.slower:
        SLOWER.write_text("".join(f"{test}\n" for test in slower(lines)), encoding="utf-8")
    else:
        print("\n".join(report(lines, given.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
