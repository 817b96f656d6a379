"""The cost of a cluster per day: requests, bytes and machines times a list of prices. Pure.

The formulas are on the page ``docs/costs.md``; ``bench/costs.py`` measures the requests of our operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.table import Cells

PRICES = Path(__file__).with_name("prices.toml")
DAY_S, HOURS, MONTH_DAYS = 86_400, 24, 30.4
MANY = 100
"""The number of partitions that share the cost of a run in figures of dollars per GiB."""
TEN = 10
"""The number of partitions of the topic in figures per day."""
GIB_PER_MIB, GB_PER_GIB = 1 / 1024, 1.0737


class Bucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of an object store."""

    put_per_1000: float
    get_per_1000: float
    gb_month: float


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of bytes between zones."""

    cross_zone_gb: float


class Disk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of disks of machines."""

    gb_month: float
    used: float


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine, and its throughput per second."""

    hour: float
    kafka_mib_s: float
    driver_mib_s: float


class Diskless(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions under which a broker of diskless topics writes an object."""

    interval_ms: float
    object_mib: float


class Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a cluster is used."""

    append_s: float
    maintain_s: float
    check_s: float
    retention_days: float
    local_hours: float
    segment_mib: float


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster with three replicas."""

    partitions: int
    mib_s: float
    """MiB appended per second, to all partitions together."""


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``bench/prices.toml``."""

    bucket: Bucket
    network: Network
    disk: Disk
    machine: Machine
    diskless: Diskless
    use: Use
    shape: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Requests:
    """Numbers of requests by price: at the price of a PUT, and at the price of a GET."""

    puts: float = 0.0
    gets: float = 0.0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.puts + other.puts, self.gets + other.gets)

    def times(self, number: float) -> Requests:
        """The requests multiplied by a number."""
        return Requests(self.puts * number, self.gets * number)

    def dollars(self, bucket: Bucket) -> float:
        return (self.puts * bucket.put_per_1000 + self.gets * bucket.get_per_1000) / 1000


@dataclass(frozen=True, slots=True)
class Operation:
    """The requests of one operation: per run, and per partition of the run."""

    run: Requests
    partition: Requests

    def of(self, partitions: float) -> Requests:
        """The requests of one run over a number of partitions."""
        return self.run + self.partition.times(partitions)


@dataclass(frozen=True, slots=True)
class Measured:
    appends: Mapping[float, Operation]
    """Appends, keyed by their MiB per partition."""
    merged: Requests
    """The requests of a merge, per merged append."""
    replicated: Operation
    """The requests of replicate and tier in a round of maintain, for partitions that have changed since the last
    round.
    """
    checked: Operation
    """The requests of merge and retain, for such partitions."""
    segment: Requests
    """The requests of tiering a segment."""

    def append(self, mib: float) -> Operation:
        """An append of that size per partition: the next larger measured append, or the largest one, repeated."""
        larger = [size for size in sorted(self.appends) if size >= mib]
        if larger:
            return self.appends[larger[0]]
        largest = max(self.appends)
        again = math.ceil(mib / largest)
        return Operation(self.appends[largest].run, self.appends[largest].partition.times(again))


@dataclass(frozen=True, slots=True)
class Costs:
    """Dollars per day."""

    requests: float = 0.0
    storage: float = 0.0
    network: float = 0.0
    machines: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all costs."""
        return self.requests + self.storage + self.network + self.machines


def in_buckets(prices: Prices, shape: Shape, measured: Measured) -> Costs:
    """Our costs, with brokers that are buckets."""
    use, bucket = prices.use, prices.bucket
    runs = DAY_S / use.append_s
    each_mib = shape.mib_s * use.append_s / shape.partitions
    segments = max(shape.mib_s * DAY_S / use.segment_mib, shape.partitions)  # at least one per partition and day
    requests = (
        measured.append(each_mib).of(shape.partitions).times(runs)
        + measured.merged.times(shape.partitions * runs)
        + measured.replicated.of(shape.partitions).times(DAY_S / use.maintain_s)
        + measured.checked.of(shape.partitions).times(DAY_S / use.check_s)
        + measured.segment.times(segments)
    )
    held = _held_gb(prices, shape, use.retention_days + 3 * use.local_hours / HOURS)
    return Costs(
        requests.dollars(bucket),
        held * bucket.gb_month / MONTH_DAYS,
        0.0,
        _machines(prices, shape.mib_s / prices.machine.driver_mib_s, 1),
    )


def on_disks(prices: Prices, shape: Shape, measured: Measured) -> Costs:
    """Our costs, with brokers on the disks of three machines in three zones; the remote tier is a bucket."""
    use = prices.use
    segments = max(shape.mib_s * DAY_S / use.segment_mib, shape.partitions)
    return Costs(
        measured.segment.times(segments).dollars(prices.bucket),
        _remote_and_local(prices, shape),
        _cross_zone(prices, shape, 2),  # the copies of two followers
        _machines(prices, shape.mib_s / prices.machine.driver_mib_s, 3),
    )


def kafka(prices: Prices, shape: Shape) -> Costs:
    """Kafka with tiered storage: two thirds of the produced bytes come from other zones; two copies are made."""
    segments = max(shape.mib_s * DAY_S / prices.use.segment_mib, shape.partitions)
    return Costs(
        Requests(puts=3 * segments).dollars(prices.bucket),  # the segment, its indexes, its metadata
        _remote_and_local(prices, shape),
        _cross_zone(prices, shape, 2 + 2 / 3),
        _machines(prices, 3 * shape.mib_s / prices.machine.kafka_mib_s, 3),
    )


def diskless(prices: Prices, shape: Shape) -> Costs:
    """Diskless topics (KIP-1150): one object per broker and interval, read once by the cache of each of three
    zones; one merged copy is kept.
    """
    machines = _diskless_machines(prices, shape)
    return Costs(
        diskless_requests(prices, shape).dollars(prices.bucket),
        _held_gb(prices, shape, prices.use.retention_days) * prices.bucket.gb_month / MONTH_DAYS,
        0.0,
        _machines(prices, machines, machines),
    )


def copies_per_gib(prices: Prices) -> float:
    """Dollars of Kafka's traffic between zones, per produced GiB."""
    return (2 + 2 / 3) * GB_PER_GIB * prices.network.cross_zone_gb


def objects_per_gib(prices: Prices) -> float:
    """Dollars of the requests of diskless topics, per GiB in objects of the maximum size."""
    return Requests(puts=1, gets=3).dollars(prices.bucket) / (prices.diskless.object_mib * GIB_PER_MIB)


def break_even_mib(prices: Prices, measured: Measured, dollars_a_gib: float) -> float | None:
    """The smallest size per partition at which the requests of appends cost at most ``dollars_a_gib`` per GiB;
    None if no measured size is large enough.
    """
    below = 0.0
    for size, operation in sorted(measured.appends.items()):
        each = per_gib(prices, operation, 1, MANY) / dollars_a_gib
        if each <= size:
            return max(below, each)
        below = size
    return None


def diskless_requests(prices: Prices, shape: Shape) -> Requests:
    """The requests of diskless topics per day, without merging."""
    by_time = _diskless_machines(prices, shape) * 1000 / prices.diskless.interval_ms
    objects = max(by_time, shape.mib_s / prices.diskless.object_mib) * DAY_S
    return Requests(puts=objects, gets=3 * objects)


def _diskless_machines(prices: Prices, shape: Shape) -> int:
    return max(3, math.ceil(3 * shape.mib_s / prices.machine.kafka_mib_s))


def per_gib(prices: Prices, operation: Operation, mib: float, partitions: int) -> float:
    """Dollars of requests per GiB that is appended in pieces of ``mib`` per partition."""
    return operation.of(partitions).dollars(prices.bucket) / (partitions * mib * GIB_PER_MIB)


def _held_gb(prices: Prices, shape: Shape, days: float) -> float:
    return shape.mib_s * GIB_PER_MIB * GB_PER_GIB * DAY_S * days


def _remote_and_local(prices: Prices, shape: Shape) -> float:
    remote = _held_gb(prices, shape, prices.use.retention_days) * prices.bucket.gb_month
    local = _held_gb(prices, shape, 3 * prices.use.local_hours / HOURS) * prices.disk.gb_month / prices.disk.used
    return (remote + local) / MONTH_DAYS


def _cross_zone(prices: Prices, shape: Shape, copies: float) -> float:
    return _held_gb(prices, shape, 1) * copies * prices.network.cross_zone_gb


def _machines(prices: Prices, wanted: float, least: int) -> float:
    return max(least, math.ceil(wanted)) * prices.machine.hour * HOURS


def requests_line(what: str, requests: Requests, bucket: Bucket) -> Cells:
    """The requests of an operation to a bucket, and their cost."""
    headings = ("operation", "at a PUT's price", "at a GET's price", "dollars per million")
    numbers = (f"{number:.1f}".removesuffix(".0") for number in (requests.puts, requests.gets))
    return Cells(headings, (what, *numbers, f"{requests.dollars(bucket) * 1e6:,.2f}"))


def append_line(what: str, gib: float, day: float, topic_day: float) -> Cells:
    """Dollars of requests of appends, per GiB and per day."""
    headings = ("MiB per append and partition", "dollars per GiB", "per partition and day", "per topic and day")
    return Cells(headings, (what, f"{gib:.4f}", f"{day:.3f}", f"{topic_day:.2f}"))


def break_even_line(what: str, gib: float, mib: float | None, most: float) -> Cells:
    """The smallest size at which appends cost no more per GiB than in another system; ``most`` is the largest
    measured size.
    """
    headings = ("compared with", "dollars per GiB", "same price at MiB per append and partition")
    return Cells(headings, (what, f"{gib:.4f}", f"above {most:g}" if mib is None else f"{mib:.1f}"))


def cluster_line(what: str, costs: Costs, tb_day: float) -> Cells:
    """A cluster of some shape, run by one system, to which ``tb_day`` TB are appended per day."""
    headings = ("cluster", "requests", "storage", "between zones", "machines", "dollars per day", "per TB")
    each = (costs.requests, costs.storage, costs.network, costs.machines, costs.total, costs.total / tb_day)
    return Cells(headings, (what, *(f"{dollars:,.2f}" for dollars in each)))


def read_prices() -> Prices:
    """The list of prices. Raises: msgspec.ValidationError, OSError."""
    return msgspec.toml.decode(PRICES.read_bytes(), type=Prices)
