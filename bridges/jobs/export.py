"""Export topics, or ranges of topics, to a Kafka cluster, each record exactly once; needs no Spark.

  stratalog export trips,fares --to kafka-2:9092                        new records, at the same offsets, one run
  stratalog export trips --to kafka-2:9092 --every 10s                  repeatedly, until interrupted
  stratalog export trips --to kafka-2:9092 --new-offsets --map s3://lake/map   after existing records
  stratalog export trips --to kafka-2:9092 --new-offsets --name replay-7 --to-topic trips-test
      --start 2013-06-01 --end 2013-06-02 --pace 10                    one day, at ten times the original speed
  stratalog export trips --to kafka-2:9092 --new-offsets --name rest --group dashboard
                                                                       the records that a group has not read yet

An export may be killed and repeated: its journal, the topic stratalog-export.NAME.TOPIC in the target, records
what the export has written, and a new run fences earlier runs. Unless you use --new-offsets, stratalog compare can
compare both sides. Needs confluent-kafka: pip install 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import sys

import stratalog
from stratalog import Report
from stratalog.bridges.jobs.mirror import SPECIAL
from stratalog.jobs.arguments import add_every
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.repeat import once_or_every
from stratalog.jobs.run import Job, JobMain

_METHOD = "stratalog.bridges.kafka:Kafka.export"


def _speed(text: str) -> float:
    try:
        return float(text.removesuffix("x"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed: write 1, 0.5 or 10x") from error


_SPECIAL: Special = {
    **{name: SPECIAL[name] for name in ("topics", "replication_factor")},
    "configs": {
        **SPECIAL["configs"],
        "help": "a config of librdkafka, such as security.protocol=SASL_SSL; KEY=@FILE takes the value from a "
        "file, which keeps passwords out of command lines",
    },
    "bootstrap": {**SPECIAL["bootstrap"], "flags": ("--to",), "required": True},
    "target_topic": {"flags": ("--to-topic",)},
    "offset_map": {"flags": ("--map",), "metavar": "TABLE"},
    "pace": {"metavar": "X", "type": _speed},
}


_TARGET = ("bootstrap", "configs", "target_topic", "replication_factor", "new_offsets", "offset_map")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, _METHOD, only=["topics"], special=_SPECIAL)
    target = parser.add_argument_group("target")
    add_declared(target, _METHOD, only=_TARGET, special=_SPECIAL)
    part = parser.add_argument_group("a range instead of the whole topic; needs --name and --new-offsets")
    begin = part.add_mutually_exclusive_group()
    add_declared(begin, _METHOD, only=["start"])
    begin.add_argument("--group", metavar="NAME", help="start at the offsets of this consumer group")
    add_declared(part, _METHOD, only=["end"])
    run = parser.add_argument_group("run")
    add_declared(run, _METHOD, leave_out=["topics", *_TARGET, "start", "end"], special=_SPECIAL)
    add_every(run)


def export(job: Job) -> Report:
    given = job.arguments
    if given.group is not None:
        given.start = stratalog.Committed(given.group)

    def once() -> Report:
        return call(job.cluster().export, given, topics=given.mirrored)

    return once_or_every("export", once, job.show_line, given.every)


main = JobMain("export", __doc__, arguments, export, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
