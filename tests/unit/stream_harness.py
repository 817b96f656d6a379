"""The source of a stream without Spark: planned, serialized, and read like tasks do."""

from __future__ import annotations

from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.reading.stream_options import source_options
from stratalog.engine.reading.stream_read import StreamTask, read_task
from stratalog.engine.reading.stream_source import StreamSource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster


def source(live: LiveCluster, topic: str = "t", **options: str) -> StreamSource:
    given = {"cluster": str(live.file), "topic": topic, "startingOffsets": "earliest", **options}
    if {"startingTimestamp", "startingOffsetsByTimestamp"} & options.keys():
        del given["startingOffsets"]
    if {"subscribe", "subscribePattern", "assign"} & options.keys():
        del given["topic"]
    return with_ports(StreamSource, ports_of(live.driver()))(source_options(given))


def first_tasks(live: LiveCluster, **options: str) -> list[StreamTask]:
    """The planned and unread tasks of a first batch without a limit."""
    stream = source(live, **options)
    begin = stream.initial()
    return stream.plan(begin, stream.latest(begin, None, None))


def values_of(tasks: list[StreamTask]) -> list[str]:
    """The values that the tasks read; tasks and records are pickled."""
    return [
        value.decode()
        for task in tasks
        for records in read_task(task, ["offset", "value"])
        for value in records.column("value").to_pylist()
    ]


def ends(offsets: StreamOffsets) -> dict[int, int]:
    """The ends of one topic, keyed by partition."""
    return {partition: position.offset for (_, partition), position in offsets.partitions.items()}


class Query:
    """A query with a checkpoint, as Spark runs it: plan, record, read, record."""

    def __init__(self, live: LiveCluster, **options: str) -> None:
        self.live, self.options = live, options
        self.planned: StreamOffsets | None = None
        self.done: StreamOffsets | None = None
        self.start()

    def start(self) -> None:
        self.source = source(self.live, **self.options)

    def plan(self, rows: int | None = None) -> StreamOffsets:
        self.planned = self.source.latest(self.begin(), rows, None)
        return self.planned

    def begin(self) -> StreamOffsets:
        """Begin like Spark: a query without a committed batch requests the initial offsets again."""
        return self.source.initial() if self.done is None else self.done

    def run(self) -> list[str]:
        """The values of the planned batch, sorted."""
        assert self.planned is not None
        return sorted(values_of(self.source.plan(self.begin(), self.planned)))

    def finish(self) -> None:
        self.done, self.planned = self.planned, None

    def batch(self, rows: int | None = None) -> list[str]:
        """The next batch; None if the offsets have not changed."""
        self.plan(rows)
        found = self.run()
        self.finish()
        return found

    def nothing_new(self) -> bool:
        """The latest offsets equal those of the last batch, so Spark begins no other."""
        assert self.done is not None
        return self.source.latest(self.done, None, None) is self.done
