"""``make slowest`` counts the processor time of processes that tests start."""

from __future__ import annotations

import subprocess
import sys

from tests.durations import Processors, report, slower

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_processes_that_ended_or_continue_are_counted_and_so_are_those_that_they_started() -> None:
    processors = Processors()
    before = processors.seconds()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    ended = processors.seconds()
    assert ended - before > 0.25
    inner = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {BUSY!r}]); print(); time.sleep(60)"
    )
    command = [sys.executable, "-uc", inner]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert processors.seconds() - ended > 0.25
        running.kill()


def test_a_report_has_a_table_for_each_part_of_the_run() -> None:
    def line(kind: str, name: str, wall: float, cpu: float, **more: object) -> dict[str, object]:
        return {"kind": kind, "name": name, "wall": wall, "cpu": cpu, **more}

    quick = [
        line("call", "a.py::test", 6, 1, spark=False, long=False, quick=True),
        line("process", "not spark", 7, 2),
    ]
    spark = [line("call", "b.py::test", 7, 3, spark=True, long=True, quick=False), line("process", "spark", 9, 8)]
    found = list(report([quick, spark], 1))
    assert [row.split() for row in found if "everything" in row] == [
        ["everything", "1", "7.0", "2.0"],
        ["everything", "1", "9.0", "8.0"],
    ]
    assert "      3.0  b.py::test" in found
    assert found[-2:] == ["over 5 s on the wall without a mark that says why: 1", "      6.0  a.py::test"]


def test_quick_tests_that_take_long_are_those_that_make_check_leaves_out() -> None:
    def took(name: str, cpu: float, quick: bool) -> list[dict[str, object]]:
        parts = {"setup": cpu / 2, "call": cpu / 2, "teardown": 0.0}
        return [{"kind": kind, "name": name, "cpu": part, "quick": quick} for kind, part in parts.items()]

    lines = [*took("a::slower[1]", 0.2, True), *took("a::slower[2]", 0.1, True), *took("a::quick", 0.01, True)]
    assert slower([lines, took("a::marked", 9, False)]) == ["a::slower"]
