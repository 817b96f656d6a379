"""``make nightly``: everything that ``make test`` skips, step by step, to the end.

    python -m tests.nightly                     all steps; then docs/proof.md is written
    python -m tests.nightly kafka matrix-4.0    some of them; their rows in docs/proof.md are replaced
    python -m tests.nightly --list              the steps, what each proves, its command

Two steps run side by side (``--lanes``), because most of them wait as much as they compute. A failed step does not
stop the others. The output of a step is in ``.cache/nightly/<step>.log``. Exit status 1 if
a step failed. Simulations, campaigns and fuzzers begin at a seed of the day, which is printed and stored.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.proof import PAGE, Proof, Row

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / ".cache" / "nightly"
_PYTEST = ("-m", "pytest", "-n", "2", "--dist", "loadfile")
_COUNTS = re.compile(
    r"^=*\s*((?:\d+ (?:passed|failed|skipped|deselected|errors?|warnings?)(?:, )?)+) in ", re.MULTILINE
)
_STOPPED_AFTER_S = 30


@dataclass(frozen=True, slots=True)
class Step:
    """One command of this Python, and what it proves."""

    name: str
    proves: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    most_minutes: int = 120
    tidy: bool = False
    """Whether the step fails if a process or a temporary file is left."""


def steps(seed: int) -> tuple[Step, ...]:
    """All steps, in the order in which they start: the long ones first."""
    deep = {"STRATALOG_TEST_DEPTH": "nightly"}
    return (
        Step(
            "unit",
            "every case without a JVM or a server, in another order each day: long tables, crashes at each call, "
            "the simulation's mutations",
            (
                *("-m", "pytest", "-n", "2", "-m", "not spark and not s3 and not kafka"),
                *("--random-order", f"--random-order-seed={seed}"),
            ),
            deep,
            most_minutes=180,
            tidy=True,
        ),
        Step(
            "spark",
            "every case on classic sessions, S3, Azure's and Google's servers",
            (*_PYTEST, "-m", "(spark or s3) and not kafka"),
            deep,
            180,
        ),
        Step(
            "connect",
            "every Spark test on Spark Connect, but those of classic sessions",
            ("-m", "pytest", "-m", "spark and not kafka"),
            {**deep, "STRATALOG_TEST_CONNECT": "1"},
        ),
        *(
            Step(f"matrix-{spark}", f"the Spark tests on Spark {spark}", ("-m", "tests.matrix", spark), deep, 180)
            for spark in ("4.0", "4.3")
        ),
        Step(
            "matrix-between",
            "a log's whole life, appends, reads and streams on the versions of Spark between these",
            ("-m", "tests.matrix", "4.1", "4.2", "--quick"),
        ),
        Step("core", "the core's unit tests without the bridges", ("-m", "tests.core_alone")),
        Step(
            "kafka",
            "the same scripts on the engine and on a real Kafka; a query over both, killed 50 times; mirrors of a "
            "tier, killed 100 times",
            ("-m", "pytest", "tests/kafka"),
            {**deep, "STRATALOG_TEST_KILLS": "50"},
        ),
        Step(
            "kafka-connect",
            "a mirrored topic and a real Kafka as one relation, on Spark Connect",
            ("-m", "pytest", "tests/kafka/test_live.py", "tests/kafka/test_live_page.py", "-m", "not classic"),
            {**deep, "STRATALOG_TEST_CONNECT": "1"},
        ),
        Step(
            "brokers",
            "mirrors and exports of three real Kafka brokers under kills",
            ("-m", "tests.kafka", "--records", "2000000", "--kills", "30", "--seed", str(seed)),
        ),
        Step("fuzz", "damaged and forged files", ("-m", "tests.fuzz", "--seconds", "600", "--seed", str(seed))),
        Step(
            "crash", "kill -9 of real spark-submits", ("-m", "tests.crashes", "--runs", "40", "--seed", str(seed))
        ),
        Step(
            "unattended",
            "maintain alone beside kills and a lost broker, on a real S3 server",
            ("-m", "tests.crashes.unattended", "--minutes", "15", "--seed", str(seed)),
        ),
        Step(
            "sim",
            "the protocol under faults, on fresh seeds",
            ("-m", "tests.simulation", "--seeds", "5000", "--seed", str(seed)),
        ),
        Step(
            "quorum",
            "the metadata's quorum under faults, on fresh seeds",
            ("-m", "tests.quorum", "--seeds", "5000", "--seed", str(seed)),
        ),
        Step(
            "linearizable",
            "histories of appends, fetches, commits and elections under faults, judged by porcupine",
            ("-m", "tests.linearizability", "--histories", "1000", "--seed", str(seed)),
        ),
        Step(
            "strangers",
            "the test suites of franz-go, kafka-python, librdkafka and Java's consumer against stratalog serve",
            ("-m", "tests.strangers"),
        ),
        *(
            Step(f"demo-{store}", f"the demo with buckets of a server ({store})", ("-m", "demo", "--store", store))
            for store in ("s3", "s3fs", "azure", "gcs")
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps and write the table. Returns exit status 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="step")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")) * 1000, help="of all campaigns")
    parser.add_argument("--lanes", type=int, default=2, help="steps that run at the same time")
    parser.add_argument("--list", action="store_true", help="print the steps and run none")
    given = parser.parse_args(argv)
    every = steps(given.seed)
    unknown = set(given.steps) - {step.name for step in every}
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; --list shows them")
    chosen = [step for step in every if not given.steps or step.name in given.steps]
    if given.list:
        for step in chosen:
            print(f"{step.name:12} {step.proves}: python {' '.join(step.arguments)}")
        return 0
    proof = Proof.read()
    failed, checked_out = [], commit()  # before this run writes its first row
    with ThreadPoolExecutor(given.lanes) as lanes:
        for ended in as_completed([lanes.submit(run, step, checked_out) for step in chosen]):
            row = ended.result()
            print(f"{row.step}: {row.result}, {row.minutes} min", flush=True)
            proof = proof.with_row(row, [each.name for each in every])
            proof.write()
            if not row.result.startswith("passed"):
                failed.append(row.step)
    print(proof.table())
    if failed:
        print(f"failed: {', '.join(failed)}; what they printed is in {LOGS}", file=sys.stderr)
    return int(bool(failed))


def run(step: Step, checked_out: str) -> Row:
    """Run one step to its end, or to its time limit; returns its result and its leftovers."""
    print(f"{step.name}: {step.proves}", flush=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{step.name}.log"
    began = time.monotonic()
    with log.open("wb") as out, tempfile.TemporaryDirectory(prefix="stratalog-nightly-") as temporary:
        process = subprocess.Popen(
            [sys.executable, *step.arguments],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **step.environment, "TMPDIR": temporary},
            start_new_session=True,  # a separate group, so that a step beyond its limit ends with its children
        )
        try:
            status = process.wait(timeout=step.most_minutes * 60)
            ended = "passed" if status == 0 else f"failed with {status}"
        except subprocess.TimeoutExpired:
            ended = f"failed: no end after {step.most_minutes} min"
        left = leftovers(Path(temporary)) if step.tidy else []
        if left and ended == "passed":
            ended = f"failed: it left {', '.join(left)}"
        _stop(process)
    minutes = round((time.monotonic() - began) / 60, 1)
    return Row(step.name, step.proves, f"{ended}: {figures(log)}", minutes, checked_out, time.strftime("%Y-%m-%d"))


def leftovers(temporary: Path) -> list[str]:
    """Temporary files except pytest's own, and processes that still use this temporary folder (Linux)."""
    found = [each.name for each in temporary.iterdir() if not each.name.startswith("pytest-of-")]
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={temporary}".encode() in environ.read_bytes().split(b"\0"):
                found.append(f"process {environ.parent.name}")
        except OSError:
            continue  # the process has ended, or belongs to another user
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=_STOPPED_AFTER_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def figures(log: Path) -> str:
    """The counts of a step: pytest's last line, otherwise the last printed line."""
    text = log.read_text(encoding="utf-8", errors="replace")
    counted = _COUNTS.findall(text)
    if counted:
        return str(counted[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:120] if lines else "it printed nothing"


def commit() -> str:
    """The current commit, with a mark if other files than the page of the proof differ from it, which the previous
    step may have written."""
    asked = ["git", "rev-parse", "--short=8", "HEAD"]
    head = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    differs = ["git", "diff", "--quiet", "HEAD", "--", ".", f":(exclude){PAGE.relative_to(ROOT)}"]
    return head if subprocess.run(differs, cwd=ROOT, check=False).returncode == 0 else f"{head}-dirty"


if __name__ == "__main__":
    sys.exit(main())
