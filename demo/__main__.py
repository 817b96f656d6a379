"""The story: append, replicate, merge, tier, retain, lose a broker, bootstrap it both ways, read, compare.

Jobs that move DataFrames, and one of replication, run under spark-submit; the others run without a JVM.

The exit status is 0 only if the log equals its source row for row, in Spark and in two other readers of the remote
table, and every step has really done something.

``--store``: the remote tier and one broker are in buckets of a real server on this machine, which the demo starts
and stops. Its credentials are only in the environment.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from demo.places import PLACES, Server, serving
from demo.prepare import COMMANDS, value_ddl
from demo.steps import Done, StepFailedError, Steps, table
from stratalog.errors import EnvironmentUnusableError
from stratalog.partitions.clock import SystemClock

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "flights"
LOST_BROKER = "2"
CONFIGS = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "segment.bytes": "300000",  # sizes for a log of seven megabytes, so that each bound is reached
    "local.retention.bytes": "300000",
    "file.delete.delay.ms": "0",
}
_EARLIEST_PENDING = "follower.fetch.last.tiered.offset.enable"


def story(steps: Steps, folder: str, server: Server | None) -> list[str]:
    """Run all steps; returns the problems found. ``server`` has the remote tier and one broker.

    Raises: StepFailedError when a step fails.
    """
    wrong: list[str] = []

    def check(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    cluster = ("--cluster", f"{folder}/cluster.toml", "--json")

    def job(title: str, name: str, *arguments: str) -> Done:
        return steps.job(title, name, *arguments, *cluster)

    def submit(title: str, name: str, *arguments: str) -> Done:
        return steps.submit(title, f"jobs/{name}.py", *arguments, *cluster)

    def lose(how: str) -> None:
        lost = f"{folder}/broker-{LOST_BROKER}"
        steps.shell(["rm", "-r", lost], f"broker {LOST_BROKER} loses its disk, and gets an empty one{how}")
        steps.shell(["mkdir", lost])

    record = (TOPIC, "--key", "tailnum", "--timestamp", "time_hour")
    bulk = (
        *record,
        "--input",
        f"{folder}/source/bulk",
        "--producer",
        "history",
        "--sequence",
        "0",
        "--acks",
        "leader",
    )
    stream = ("--stream", "--checkpoint", f"{folder}/checkpoint", "--option", "maxFilesPerTrigger=1")
    settings = [part for pair in CONFIGS.items() for part in ("--config", "=".join(pair))]
    shape = ("--partitions", "6", "--replication-factor", "3", "--key", "STRING", "--value", value_ddl())

    remote = f"{folder}/remote" if server is None else server.place.remote
    elsewhere = () if server is None else server.arguments

    steps.begin()
    if server is not None:
        steps.remark(
            f"{server.endpoint} stops with the demo. To run this again, replace it with another server's address,"
        )
        steps.remark(
            f"with empty buckets {' and '.join(server.place.buckets)}, and set that server's credentials."
        )
    steps.shell(
        ["python", "-m", "demo.prepare", folder, *elsewhere],
        "folders, a cluster file, the flights as files",
    )
    job("format 3 brokers", "format")
    job("create the topic", "topics", "create", TOPIC, *shape, *settings)

    first = submit("append the bulk load", "append", *bulk)
    again = submit("append it once more", "append", *bulk)
    check(again.report["totals"]["bytes"] == 0, "the bulk load was appended twice")
    followers = submit("replicate", "replicate", "--topics", TOPIC)
    check(followers.sum("copied_bytes") > 0, "nothing was replicated")
    batches = submit("append 10 micro-batches", "append", *record, "--input", f"{folder}/source/batches",
                  "--producer", "live", *stream)  # fmt: skip
    check(len(batches.rows) == 10, f"{len(batches.rows)} micro-batches")

    merged = job("merge small files", "merge")
    check(merged.sum("segments") > 0, "nothing was merged")
    job("replicate the segments", "replicate")
    tiered = job("tier sealed segments", "tier")
    pending = tiered.sum("pending_bytes", TOPIC)  # the history also grows, and is tiered
    check(tiered.sum("uploaded_files") > 0, "nothing was tiered")
    check(pending > 0, "nothing is pending")
    job("retain: move local starts", "retain")
    dropped = job("retain: delete the files that are no longer in the log", "retain")
    check(dropped.sum("deleted_bytes") > 0, "nothing was dropped")

    lose("")
    job(
        f"set {_EARLIEST_PENDING}",
        "topics",
        "alter-configs",
        "--cluster-wide",
        "--set",
        f"{_EARLIEST_PENDING}=true",
    )
    short = job("bootstrap from pending upload", "bootstrap", LOST_BROKER)
    lose(" again")
    job("set it to false", "topics", "alter-configs", "--cluster-wide", "--set", f"{_EARLIEST_PENDING}=false")
    full = job("bootstrap from local start", "bootstrap", LOST_BROKER)
    with_it, without = short.sum("copied_bytes", TOPIC), full.sum("copied_bytes", TOPIC)
    check(with_it == pending, f"{with_it} bytes were copied, but {pending} were not tiered yet")
    check(without > with_it, "bootstrapping from the earliest pending upload offset has saved nothing")

    verified = job("verify every byte", "verify", "--deep")
    check(not verified.sum("findings"), "verify has findings")
    submit("read everything", "read", TOPIC, "--output", f"{folder}/read")
    compared = steps.submit(
        "compare with the source",
        "demo/compare.py",
        *("--source", f"{folder}/source", "--read", f"{folder}/read"),
        *("--remote", remote, "--topic", TOPIC, *elsewhere),
    )

    print("\n" + "\n".join(table(steps.done)))
    print(f"\nThe bulk load: {first.report['totals']['records']:,} records; micro-batches: {len(batches.rows)}.")
    print(
        f"Bootstrap of broker {LOST_BROKER}: {with_it:,} bytes copied with KIP-1023 (only what was not tiered "
        f"yet), and {without:,} bytes without it ({without / max(with_it, 1):.1f} times as many)."
    )
    print("Row for row:")
    for row in compared.rows:
        print(f"  {row['check']}: {row['rows']:,} rows, {row['differences']} differ")
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--store", choices=PLACES, help="the remote tier and a broker on a server of this kind")
    given = parser.parse_args(argv)
    folder = os.path.relpath(os.environ.get("DEMO_DIR") or ROOT / "demo-data", ROOT)
    clock = SystemClock()
    began = clock.monotonic_s()
    steps = Steps(ROOT, ROOT / folder / COMMANDS, clock)
    try:
        with nullcontext() if given.store is None else serving(given.store) as server:
            wrong = story(steps, folder, server)
    except (StepFailedError, EnvironmentUnusableError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    for what in wrong:
        print(f"WRONG: {what}", file=sys.stderr)
    took = clock.monotonic_s() - began
    print(f"{'FAILED' if wrong else 'All equal'}, {took:.0f} s. The commands are in {folder}/{COMMANDS}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
