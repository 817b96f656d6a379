"""Mirror topics of a Kafka cluster: copy the same records to the same offsets.

  stratalog mirror trips,fares --from kafka-1:9092            new records, one run
  stratalog mirror trips --from kafka-1:9092 --every 10s      repeatedly, until interrupted
  stratalog mirror trips --from kafka-1:9092 --archive        keep records that the source deletes
  stratalog mirror trips --from kafka-1:9092 --as trips=rides    under another name here
  stratalog mirror trips --from kafka-1:9093 --config security.protocol=SSL --config ssl.ca.location=ca
  stratalog mirror trips --from kafka-1:9093 --config sasl.password=@FILE    the value is in a file
  stratalog mirror trips --from kafka-1:9092 --master spark://host:7077   on the executors of a cluster
  stratalog mirror trips --from kafka-1:9092 --tier s3://kafka-tier/prefix --layout aiven   history from its bucket
  stratalog mirror trips --offline s3://backup/logs --tier s3://kafka-tier/prefix --layout aiven   no brokers left
  stratalog mirror trips --from kafka-1:9092 --format confluent-avro --schema trip.avsc
  stratalog mirror trips --end                                end the mirror; producers may append

Any number of mirrors may run, and any may be killed: the end of the mirrored log is the position in the source.
stratalog compare compares a mirror with its source. Needs confluent-kafka: pip install 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import KafkaTierOptions, Report
from stratalog.jobs.arguments import add_every, add_yes, check_options, count, pair_or_file
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.repeat import once_or_every
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.errors import InvalidCallError

METHOD = "stratalog.bridges.kafka:Kafka.mirror"
SPECIAL: Special = {
    "topics": {
        "flags": ("mirrored",),
        "metavar": "TOPICS",
    },  # not ``topics``, because Job.cluster would check that they exist in this cluster
    "bootstrap": {"metavar": "HOST:PORT"},
    "configs": {
        "flags": ("--config",),
        "metavar": "KEY=VALUE",
        "type": pair_or_file,
        "help": "a config of librdkafka, such as security.protocol=SASL_SSL, or of a schema registry "
        "(schema.registry.url); KEY=@FILE takes the value from a file, which keeps passwords out of command lines",
    },
    "value_format": {"flags": ("--format",), "help": "decode values with --schema (default: keep bytes)"},
    "schema_file": {"flags": ("--schema",), "metavar": "FILE"},
    "replication_factor": {"type": count},
    "rename": {"flags": ("--as",), "metavar": "SOURCE=NAME"},
    "address": {"flags": ("--tier",), "metavar": "URL"},
    "layout": {"flags": ("--layout",), "metavar": "NAME"},
    "prefix": {"flags": ("--tier-prefix",)},
    "keys": {"flags": ("--tier-key",), "metavar": "ID=FILE"},
    "endpoint_url": {"flags": ("--tier-endpoint-url",), "metavar": "URL"},
    "region": {"flags": ("--tier-region",)},
    "metadata": {"flags": ("--offline",), "metavar": "URL"},
    "epochs": {"flags": ("--tier-epochs",), "metavar": "PARTITION=FILE"},
    "log_starts": {"flags": ("--tier-log-start",), "metavar": "PARTITION=OFFSET"},
}
TIER = "stratalog.bridges.kafka_tier.options:KafkaTierOptions"
OF_TIER = ("address", "layout", "prefix", "keys", "endpoint_url", "region", "epochs", "log_starts")
"""The options of a tier except ``--offline``, which replaces the brokers."""
_CREATED = ("replication_factor", "archive", "rename")
_VALUES = ("value_format", "schema_file", "message")
_RUN = ("configs", *OF_TIER, *_CREATED, "groups", "throttle_bytes_per_s", "budget_s", "value_format", "every")


def check_format(given: argparse.Namespace) -> None:
    """Check that ``--format`` and ``--schema`` are given together. Raises: InvalidCallError."""
    for one, other in (("format", "schema"), ("schema", "format"), ("message", "format")):
        if f"--{one}" in given.used.values() and f"--{other}" not in given.used.values():
            raise InvalidCallError(f"--{one} needs --{other}")


def tier_of(given: argparse.Namespace) -> KafkaTierOptions | None:
    """Return the tier that the command line names. Raises: InvalidCallError for an option without another option
    that it needs."""
    for option, needed in (
        ("address", "layout"),
        *((one, "address") for one in (*OF_TIER[1:], "metadata")),
        *((one, "metadata") for one in ("epochs", "log_starts")),
    ):
        if option in given.used and needed not in given.used:
            raise InvalidCallError(f"{given.used[option]} needs {SPECIAL[needed]['flags'][0]}")
    return call(KafkaTierOptions, given) if "address" in given.used else None


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, METHOD, only=["topics"], special=SPECIAL)
    source = parser.add_argument_group("source")
    what = source.add_mutually_exclusive_group(required=True)
    add_declared(
        what,
        METHOD,
        only=["bootstrap"],
        special={**SPECIAL, "bootstrap": {**SPECIAL["bootstrap"], "flags": ("--from",)}},
    )
    add_declared(what, TIER, only=["metadata"], special=SPECIAL)
    what.add_argument(
        "--end", action="store_true", help="end the mirrors; producers may then append to the topics"
    )
    add_declared(source, METHOD, only=["configs"], special=SPECIAL)
    add_declared(parser.add_argument_group("tiered storage of the source"), TIER, only=OF_TIER, special=SPECIAL)
    add_declared(
        parser.add_argument_group("topics that the mirror creates"), METHOD, only=_CREATED, special=SPECIAL
    )
    add_declared(parser.add_argument_group("values"), METHOD, only=_VALUES, special=SPECIAL)
    run = parser.add_argument_group("run")
    add_declared(run, METHOD, only=["groups", "throttle_bytes_per_s", "budget_s", "dry_run"], special=SPECIAL)
    add_yes(run)
    add_every(run)


def mirror(job: Job) -> Report:
    given = job.arguments
    check_options(given, bars=[("end", *_RUN)])
    check_format(given)
    tier = tier_of(given)
    if given.end:
        job.confirm(f"end the mirroring of {', '.join(given.mirrored)}; it cannot be restarted")
        return call(job.cluster().end_mirror, given, topics=given.mirrored)

    def once() -> Report:
        return call(job.on_workers().mirror, given, topics=given.mirrored, tier=tier)

    return once_or_every("mirror", once, job.show_line, given.every)


main = JobMain("mirror", __doc__, arguments, mirror)


if __name__ == "__main__":
    sys.exit(main())
