"""Find, in every partition, the offset of a named position, or of the first record at or after a time
(ListOffsets). Changes nothing."""

from __future__ import annotations

import argparse
import sys

from stratalog import FoundOffset, Report
from stratalog.engine.driver.report import Value
from stratalog.engine.reading.positions import time_text
from stratalog.jobs.arguments import add_dry_run, names
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.offsets import Answer


def arguments(parser: argparse.ArgumentParser) -> None:
    topics = {"flags": ("topics",), "type": names, "help": "one or more topics: a,b"}
    add_declared(parser, "client.Client.offsets", special={"topic": topics})
    add_dry_run(parser, "no effect: this job changes nothing anyway")


def offsets(job: Job) -> Report:
    given, cluster = job.arguments, job.cluster()
    with cluster.measured() as measure:
        rows = [
            _row(topic, partition, answer)
            for topic in given.topics
            for partition, answer in sorted(call(cluster.offsets, given, topic=topic).items())
        ]
    return Report("offsets", rows, seconds=measure.seconds, counts=measure.counts)


def _row(topic: str, partition: int, answer: Answer) -> dict[str, Value]:
    row: dict[str, Value] = {"topic": topic, "partition": partition}
    if isinstance(answer, FoundOffset):
        when = answer.timestamp_us
        time = None if when is None else time_text(when)
        return {**row, "offset": answer.offset, "timestamp": time, "leader_epoch": answer.leader_epoch}
    return {**row, "offset": None, "unknown": answer.reason}


main = JobMain("offsets", __doc__, arguments, offsets, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
