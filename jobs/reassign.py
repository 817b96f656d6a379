"""Move replicas to other brokers, according to a plan in Kafka's JSON format or to options such as --drain. Also
shows the progress of reassignments, and cancels them.

New replicas are copied first, at the speed of --throttle; old replicas are removed when all new replicas are in
sync. If a run stops halfway, the next run of replicate continues at the same throttle. --cancel reverts
everything.

  stratalog reassign --drain 3 --dry-run --write-plan plan.json     make a plan, show it, and save it
  stratalog reassign --plan plan.json --throttle 50MiB              carry out the plan
  stratalog reassign --status                                       show what remains to be copied
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stratalog import Report
from stratalog.engine.metadata.reassignment_plan import ReplicaPlan, parse_plan, plan_json
from stratalog.jobs.arguments import add_yes, check_options, count
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.errors import InvalidCallError

_WISHES = ("add", "remove", "move", "drain", "replication_factor")
_WHEN_MOVING = ("throttle_bytes_per_s", "force", "write_plan")
_BARS = (
    ("plan", "status", "cancel", *_WISHES, "topics"),
    ("status", "cancel", *_WISHES, *_WHEN_MOVING),
    ("cancel", *_WISHES, *_WHEN_MOVING),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.plan_replicas", only=["topics"])
    add_declared(parser, "jobs.Jobs.reassign", only=["dry_run"])
    add_yes(parser)
    instead = parser.add_argument_group("one action")
    instead.add_argument(
        "--plan",
        metavar="FILE",
        type=Path,
        help="carry out the plan in FILE, in the format of kafka-reassign-partitions",
    )
    instead.add_argument("--status", action="store_true", help="list the reassignments in progress")
    instead.add_argument(
        "--cancel", action="store_true", help="cancel the reassignments in progress, and revert them"
    )
    wish = parser.add_argument_group("or one or more changes")
    add_declared(
        wish,
        "jobs.Jobs.plan_replicas",
        only=_WISHES,
        special={"move": {"metavar": "N:M", "type": moves}, "replication_factor": {"type": count}},
    )
    how = parser.add_argument_group("run")
    add_declared(how, "jobs.Jobs.reassign", only=["throttle_bytes_per_s", "force"])
    how.add_argument("--write-plan", metavar="FILE", type=Path, help="write the plan to FILE as JSON")


def moves(text: str) -> dict[int, int]:
    """Convert moves such as ``1:2,3:4`` to a mapping from broker to broker."""
    found: dict[int, int] = {}
    for part in text.split(","):
        pair = [word.strip() for word in part.split(":")]
        if len(pair) != 2 or not all(word.isascii() and word.isdigit() for word in pair):
            raise argparse.ArgumentTypeError(f"{text!r}: write moves as FROM:TO, separated by commas")
        source, destination = int(pair[0]), int(pair[1])
        if source == destination or source in found:
            raise argparse.ArgumentTypeError(f"{text!r}: move broker {source} to exactly one other broker")
        found[source] = destination
    return found


def reassign(job: Job) -> Report:
    given = job.arguments
    check_options(given, bars=_BARS)
    if given.status:
        return job.cluster().reassignments(given.topics)
    if given.cancel:
        return call(job.cluster().cancel_reassignments, given)
    if given.plan is None and all(getattr(given, wish) is None for wish in _WISHES):
        raise InvalidCallError("name the action: --plan, --status, --cancel, or a change such as --drain")
    plan = read_plan(given.plan) if given.plan is not None else call(job.cluster().plan_replicas, given)
    if given.write_plan is not None:
        _write(given.write_plan, plan)
    if given.force:
        job.confirm("reassign with --force: records that only removed replicas have will be lost")
    cluster = job.cluster() if given.dry_run else job.on_workers()
    return call(cluster.reassign, given, plan=plan)


def read_plan(path: Path) -> ReplicaPlan:
    """Return the plan in a file. Raises: InvalidCallError."""
    try:
        return parse_plan(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidCallError(f"{path} cannot be read: {error.strerror}") from error


def _write(path: Path, plan: ReplicaPlan) -> None:
    try:
        path.write_text(plan_json(plan), encoding="utf-8")
    except OSError as error:
        raise InvalidCallError(f"{path} cannot be written: {error.strerror}; nothing was changed") from error


main = JobMain("reassign", __doc__, arguments, reassign)


if __name__ == "__main__":
    sys.exit(main())
