"""What a run of the tests takes: every phase of every test, every fixture, every collection.

``tests/conftest.py`` loads this module as a plugin. Each process of a run writes its own file of JSON lines into
``.cache/durations``, and ``make test`` empties the folder before its first run. ``make slowest`` prints the
slowest tests and files, the sum by kind, and tests of more than five seconds that no mark ``long`` explains:

    python -m tests.durations --rows 30
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

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "durations"
LONG_S = 5.0
JVMS = ("spark", "connect_url", "standalone")
SERVERS = ("s3_endpoint", "azure_endpoint", "gcs_endpoint", "kms", "clients")


class Recorder:
    """Writes a line for each thing that took time: seconds on the wall, and of this process' processors."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def _timed(self, kind: str, name: str, **more: object) -> Iterator[Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return (yield)
        finally:
            took = {"wall": round(time.perf_counter() - wall, 4), "cpu": round(time.process_time() - cpu, 4)}
            self._out.write(json.dumps({"kind": kind, "name": name, **took, **more}) + "\n")
            self._out.flush()

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
        return (yield from self._timed("call", item.nodeid, spark=spark, long=long))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[Any]:
        return (yield from self._timed("teardown", item.nodeid))


def pytest_configure(config: pytest.Config) -> None:
    if config.option.collectonly:
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    FOLDER.mkdir(parents=True, exist_ok=True)
    out = (FOLDER / f"{time.time_ns()}-{worker}.jsonl").open("w", encoding="utf-8")  # noqa: TID251 - a file's name
    config.add_cleanup(out.close)
    config.pluginmanager.register(Recorder(out), "durations")


def kind_of(line: dict[str, Any]) -> str:
    """What a line of a file is time for."""
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
        case kind:
            return str(kind)


def report(lines: Sequence[dict[str, Any]], rows: int) -> Iterator[str]:
    """The tables of these lines, as text."""
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    fixtures: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    explained = set()
    for line in lines:
        kinds[kind_of(line)].update(wall=line["wall"], cpu=line["cpu"], count=1)
        if line["kind"] == "fixture":
            fixtures[f"{line['place']}::{line['name']}"] += line["wall"]
        elif line["kind"] != "collection":
            tests[line["name"]] += line["wall"]
            files[line["name"].partition("::")[0]] += line["wall"]
        if line["kind"] == "call":
            calls[line["name"]] += line["wall"]
            if line["long"]:
                explained.add(line["name"])
    yield f"{'kind':40} {'times':>7} {'wall s':>9} {'cpu s':>9}"
    for kind, sums in sorted(kinds.items(), key=lambda each: -each[1]["wall"]):
        yield f"{kind:40} {sums['count']:7,} {sums['wall']:9.1f} {sums['cpu']:9.1f}"
    for title, took in (("tests", tests), ("files", files), ("fixtures", fixtures)):
        yield f"\nslowest {title}, wall s"
        for name, wall in took.most_common(rows):
            yield f"{wall:9.1f}  {name}"
    unexplained = [(name, wall) for name, wall in calls.most_common() if wall > LONG_S and name not in explained]
    yield f"\nover {LONG_S:.0f} s without a mark that says why: {len(unexplained)}"
    for name, wall in unexplained:
        yield f"{wall:9.1f}  {name}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of the last ``make test``. Exit status 1 where there was none."""
    parser = argparse.ArgumentParser(prog="python -m tests.durations", description=__doc__)
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args(argv)
    files = sorted(given.folder.glob("*.jsonl"))
    if not files:
        print(f"{given.folder} has no durations: run make test first", file=sys.stderr)
        return 1
    lines = [json.loads(line) for file in files for line in file.open(encoding="utf-8")]
    print("\n".join(report(lines, given.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
