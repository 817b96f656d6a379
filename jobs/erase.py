"""Permanently erase every record that has one of the given keys or matches a condition, from all replicas and the
remote tier. All other records keep their offsets.

  stratalog erase trips --keys-file keys.txt --certificate erased.json --yes
  stratalog erase trips --where "value.rider = 'Ada' AND timestamp < TIMESTAMP '2013-01-02T00:00:00Z'" --yes
  stratalog erase trips --yes                    continue the erasure that an earlier run began

keys.txt has one key per line. With --key-format json, keys have the form that tail --format json prints: {"id": 7,
"area": "x"}, a date as "2013-01-02", and bytes that are not text as {"base64": "AP8="}.

--where takes comparisons of columns with literals of their types, [NOT] IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT
and parentheses, as in Spark SQL. Use stratalog read --where to see the records first. With --keys-file and
--where, a record must match both.

The next run of erase deletes the files that had the records, once file.delete.delay.ms has passed. With --now,
this run deletes them immediately. The certificate lists what was erased, and what is not erased yet. It does not
contain keys, only their digests. With these, stratalog verify --erased finds the keys in the bytes of every copy.
In the remote tier, the objects that had the records are deleted too, and so are the older versions of the Delta
table and of the Iceberg table. A topic is refused if its records cannot be erased everywhere, or if it is
protected. The error then names the topic, and nothing is changed. In a topic with snapshots, the log starts at a
snapshot without the keys after the erasure: all earlier records leave the log. If the topic publishes its
snapshots, its table is replaced by that snapshot.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import codecs
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog import Report
from stratalog.jobs.arguments import add_yes, check_options
from stratalog.jobs.declared import Special, add_declared
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError

if TYPE_CHECKING:
    from stratalog.engine.metadata.image import TopicImage

_METHOD = "erasing.Erasing.erase"


def arguments(parser: argparse.ArgumentParser) -> None:
    special: Special = {
        "where": {"metavar": "EXPR"},
        "before": {"metavar": "TIME"},
        "certificate": {"metavar": "FILE"},
    }
    add_declared(parser, _METHOD, only=["topics"])
    parser.add_argument(
        "--keys-file",
        metavar="FILE",
        type=Path,
        help="file with the keys, one per line; without --keys-file and --where, continue an earlier run",
    )
    parser.add_argument(
        "--key-format",
        choices=sorted(_FORMATS),
        help="encoding of the keys in the file: text (the default), hex, base64 or json; it must suit the "
        "topic's key type",
    )
    add_declared(parser, _METHOD, only=["where", "before", "now", "certificate", "dry_run"], special=special)
    add_yes(parser)


def erase(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("key_format", "keys_file")])
    keys = None if given.keys_file is None else read_keys(given.keys_file, given.key_format or "text")
    cluster = job.on_workers()
    if keys is not None and given.key_format == "json":
        image = cluster.image
        keys = typed_keys(keys, [image.topic(name) for name in given.topics], given.keys_file)
    topics = ", ".join(map(repr, given.topics))
    job.confirm(f"permanently erase {_told(keys, given.where)} from {topics}")
    return cluster.erase(
        given.topics,
        keys,
        where=given.where,
        before=given.before,
        now=given.now,
        certificate=given.certificate,
        dry_run=given.dry_run,
        check=False,
    )


def _told(keys: Sequence[object] | None, where: str | None) -> str:
    if keys is None:
        return (
            "the records that an earlier run began to erase"
            if where is None
            else "all records that --where selects"
        )
    return f"all records of {len(keys):,} keys{'' if where is None else ' that --where selects'}"


def read_keys(path: Path, key_format: str) -> list[object]:
    """Return the keys in a file. Raises: InvalidCallError, which names the line, but not the key."""
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise InvalidCallError(f"{path} cannot be read: {error.strerror}") from error
    keys = []
    for number, line in enumerate(lines, 1):
        if not line:
            raise InvalidCallError(
                f'{path}, line {number}, is empty: remove it; --key-format json has "" for an empty key'
            )
        try:
            keys.append(_FORMATS[key_format](line))
        except (ValueError, binascii.Error) as error:
            raise InvalidCallError(f"{path}, line {number}, is not {key_format}") from error
    if not keys:
        raise InvalidCallError(f"{path} has no keys")
    return keys


def typed_keys(keys: Sequence[object], topics: Sequence[TopicImage], path: Path) -> list[object]:
    """Return the keys in a file of JSON, as values of the key type of the topics.

    Raises: InvalidCallError, which names the line, but not the key; also if the topics have different key types.
    """
    # imported here, so that --help does not load pyarrow
    from stratalog.engine.driver.plain_values import example, from_plain
    from stratalog.partitions.records import schema_of
    from stratalog.partitions.rewrites.wanted_keys import wrong_fields

    types = {schema_of(topic.key_schema, topic.value_schema).field("key").type for topic in topics}
    if len(types) > 1:
        raise InvalidCallError("the topics have different key types: run erase for each topic separately")
    typed = []
    for kind in types:
        for number, key in enumerate(keys, 1):
            if why := wrong_fields(key, kind):
                raise InvalidCallError(f"{path}: the key of line {number} {why}")
            try:
                typed.append(from_plain(key, kind))
            except ValueError:
                such = json.dumps(example(kind))
                raise InvalidCallError(
                    f"{path}: line {number} is not of the key type {kind}: give a key such as {such}"
                ) from None
    return typed


_FORMATS: dict[str, Callable[[bytes], object]] = {
    "text": lambda line: line.decode(),
    "hex": lambda line: bytes.fromhex(line.decode()),
    "base64": lambda line: base64.b64decode(line, validate=True),
    "json": parse_json,
}

main = JobMain("erase", __doc__, arguments, erase)


if __name__ == "__main__":
    sys.exit(main())
