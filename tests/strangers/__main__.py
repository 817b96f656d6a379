"""Run the suites of other clients against ``stratalog serve``, and count: ``python -m tests.strangers``.

The sources come from the registries into ``.cache/strangers``; Go, npm, a C++ compiler and a JDK are needed. Each
test runs in a separate process with an endpoint of its suite. Exit status 1 if a test fails that is not a known
gap, or if less than 95 % of the applicable tests pass.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.strangers.suites import CACHE, ROOT, SUITES, Suite, environment_of

_LEAST = 0.95
_MEMORY = "/dev/shm"
"""A folder of Linux in memory."""


@contextmanager
def _endpoint(folder: Path, partitions: int) -> Iterator[int]:
    """The port of an endpoint that also accepts the writes of suites."""
    command = [sys.executable, "-m", "tests.strangers.writing", "--port", "0", "--partitions", str(partitions)]
    environment = environment_of({"PYTHONPATH": str(CACHE / "site"), "TMPDIR": str(folder)})
    with (folder / "endpoint.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().removeprefix("ready at "))
    finally:
        process.terminate()
        process.wait()


def _verdict(suite: Suite, test: str, port: int, log: Path) -> str:
    command, folder, environment = suite.command(test, port)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, env=environment_of(environment)
        )
        try:
            status = process.wait(timeout=suite.most_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"failed: no end after {suite.most_s:.0f} s"
    output = log.read_text(encoding="utf-8", errors="replace")
    if status:
        return f"failed with {status}"
    return "passed" if suite.passed(test, output) else "skipped itself"


def _run(suite: Suite, only: str) -> tuple[int, int, int]:
    """The numbers of tests that applied, passed, and failed without being a known gap."""
    suite.fetch()
    logs = CACHE / "logs"
    logs.mkdir(exist_ok=True)
    applied = passed = unknown = 0
    # On a disk, suites that produce would wait for each append.
    place = _MEMORY if Path(_MEMORY).is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-strangers-", dir=place) as folder,
        _endpoint(Path(folder), suite.partitions) as port,
    ):
        for test in suite.tests:
            if only and only not in test:
                continue
            found = _verdict(suite, test, port, logs / f"{test.rpartition('::')[2]}.log")
            applied += found != "skipped itself"
            passed += found == "passed"
            failed = found.startswith("failed")
            unexpected = failed and test not in suite.gaps
            unknown += unexpected
            if found != "passed":
                known = ", a known gap" if failed and not unexpected else ""
                print(f"{suite.name} {test}: {found}{known}", flush=True)
        with suppress(OSError):
            (logs / f"endpoint of {suite.name}.log").write_bytes(Path(folder, "endpoint.log").read_bytes())
    print(f"{suite.name} {suite.version}: {passed} of {applied} that apply passed", flush=True)
    return applied, passed, unknown


def main() -> int:
    """Print the tests that did not pass, and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"some of: {', '.join(each.name for each in SUITES)}")
    parser.add_argument("--only", default="", help="tests whose names have this text")
    given = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    if not (CACHE / "site").exists():  # snappy is for the Produce requests that franz-go sends
        install = ["-m", "pip", "install", "--quiet", "--target", str(CACHE / "site"), "cramjam"]
        subprocess.run([sys.executable, *install], check=True)
    chosen = [each for each in SUITES if not given.suites or each.name.split()[0] in given.suites]
    counted = [_run(suite, given.only) for suite in chosen]
    applied, passed, unknown = (sum(column) for column in zip(*counted, strict=True))
    print(f"{passed} of {applied} tests of strangers passed; {unknown} failures are not known gaps")
    return int(unknown > 0 or passed < _LEAST * applied)


if __name__ == "__main__":
    sys.exit(main())
