"""The throttle of a reassignment: every driver obeys it, even after the death of its own driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.replication import sync
from stratalog.engine.replication import throttle as throttles
from stratalog.engine.replication.throttle import SharedThrottle
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError, StorageError
from stratalog.partitions.paths import REPLICATION_THROTTLE, base_name
from tests.unit.cluster_harness import LiveCluster, report_of, rows_of
from tests.unit.faulty_store import Faults
from tests.unit.reassign_harness import replicas

KEY = "follower.replication.throttled.rate"
VALUES = "abcdefghijklmnopqrstuvwxyz"
FILES = len(VALUES)


class Moving:
    """t-0 on broker 1, to be moved to broker 2, one file at a time; the copied files, and their times."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sync, "_GROUP_FILES", 1)
        self.faults = Faults()
        self.live = LiveCluster(folder, brokers=2, through=self.faults.wrap)
        self.live.topic(copies=1)
        self.live.cluster.reassign({("t", 0): [1]})
        self.live.fill(VALUES)
        self.size_of = {name: len(data) for name, data in self.live.data(1).items()}
        self.sizes = [*self.size_of.values()]
        self.size = sum(self.sizes)
        self.rate = self.size / FILES
        """Bytes per second: about one file."""
        self.arrived: list[tuple[float, int]] = []
        self.on_copy: Callable[[int], None] = lambda number: None
        """Called with the number of each copy that begins."""
        self.faults.before = self.before

    def before(self, uri: str, what: str, name: str) -> None:
        if uri == "memory://b2" and what == "stage":
            self.arrived.append((self.live.clock.monotonic_s(), self.size_of[base_name(name)]))
            self.on_copy(len(self.arrived))

    def reassign(self, driver: Cluster | None = None) -> None:
        (driver or self.live.cluster).reassign({("t", 0): [2]}, throttle_bytes_per_s=self.rate)

    def check_rate(self) -> None:
        """Check that in no period more bytes arrived than the throttle allows, plus the first second's worth, a
        file that was paid for before the period, and one that is paid for after it."""
        for index, (begin_s, _) in enumerate(self.arrived):
            for end in range(index, len(self.arrived)):
                period_s = self.arrived[end][0] - begin_s
                size = sum(size for _, size in self.arrived[index : end + 1])
                assert size <= self.rate * (period_s + 1) + 2 * max(self.sizes), (index, end)

    def throttle(self) -> str | None:
        return self.live.cluster.image.configs.get(KEY)


@pytest.fixture
def moving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moving:
    return Moving(tmp_path, monkeypatch)


@pytest.mark.parametrize("other", ["replicate", "maintain"])
def test_a_reassignment_and_another_driver_together_copy_no_faster(moving: Moving, other: str) -> None:
    """The other driver copies everything again between two files of the first one."""
    live = moving.live
    beside = live.driver()

    def between(number: int) -> None:
        if number == 4:
            beside.replicate() if other == "replicate" else beside.maintain(only=["replicate"])

    moving.on_copy = between
    began_s = live.clock.monotonic_s()
    moving.reassign()
    assert len(moving.arrived) > FILES, "both have copied"
    copied = sum(size for _, size in moving.arrived)
    assert live.clock.monotonic_s() - began_s >= copied / moving.rate - 2
    moving.check_rate()
    assert replicas(live) == (2,)
    assert live.read() == {0: list(VALUES)}


def test_the_throttle_of_a_dead_reassignment_is_in_force_until_it_is_done(moving: Moving) -> None:
    live = moving.live

    def die(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    moving.on_copy = die
    with pytest.raises(KeyboardInterrupt):
        moving.reassign()
    moving.on_copy = lambda number: None
    assert moving.throttle() == str(-(-moving.size // FILES))
    status = live.driver().reassignments()
    assert status.totals["throttle_bytes_per_s"] == -(-moving.size // FILES)
    began_s, runs = live.clock.monotonic_s(), 0
    while live.cluster.image.partition(live.replicas().view.topic_id, 0).target:
        run_s, runs = live.clock.monotonic_s(), runs + 1
        live.driver().maintain(only=["replicate"])
        assert live.clock.monotonic_s() - run_s < 12, "the other steps of maintain are not late"
    assert live.clock.monotonic_s() - began_s >= (FILES - 3) - 2
    assert runs > 1
    moving.check_rate()
    assert replicas(live) == (2,)
    assert moving.throttle() is None
    assert "throttle_bytes_per_s" not in live.cluster.reassignments().totals


def test_a_reassignment_that_is_cancelled_takes_its_throttle_along(moving: Moving) -> None:
    def fail(number: int) -> None:
        raise StorageError("not now")

    moving.on_copy = fail
    assert not report_of(lambda: moving.live.cluster.reassign({("t", 0): [2]}, throttle_bytes_per_s=5)).ok
    assert moving.throttle() == "5"
    moving.live.cluster.cancel_reassignments()
    assert moving.throttle() is None


def test_a_throttle_that_is_altered_is_the_one_in_force(moving: Moving) -> None:
    def fail(number: int) -> None:
        raise StorageError("not now")

    moving.on_copy = fail
    report_of(lambda: moving.live.cluster.reassign({("t", 0): [2]}, throttle_bytes_per_s=moving.rate))
    moving.on_copy = lambda number: None
    moving.live.cluster.topics.alter_configs(None, {KEY: str(100 * moving.size)})
    began_s = moving.live.clock.monotonic_s()
    moving.live.cluster.replicate()
    assert moving.live.clock.monotonic_s() - began_s < 2
    assert replicas(moving.live) == (2,)


def test_copies_outside_a_reassignment_are_not_throttled(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=3)
    live.topic()
    live.cluster.topics.alter_configs(None, {KEY: "1"})
    follower = next(broker for broker in live.followers() if broker != 1)
    live.cluster.brokers.fence(follower)
    live.fill("abc")
    began_s = live.clock.monotonic_s()
    live.cluster.brokers.unfence(follower)
    live.cluster.replicate()
    assert live.isr() == {1, 2, 3}
    assert live.clock.monotonic_s() == began_s
    assert live.cluster.image.configs[KEY] == "1", "what was not set by a reassignment stays"


def test_a_reassignment_that_copies_nothing_leaves_no_throttle(moving: Moving) -> None:
    rows_of(moving.live.cluster.reassign({("t", 0): [1]}, throttle_bytes_per_s=5))
    assert moving.throttle() is None


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_throttle_of_nothing_changes_nothing(moving: Moving, rate: float) -> None:
    with moving.live.unchanged(), pytest.raises(InvalidCallError, match="would copy nothing"):
        moving.live.cluster.reassign({("t", 0): [2]}, throttle_bytes_per_s=rate)


# --------------------------------------------------------------------------------- the bucket itself


def spent_s(live: LiveCluster, throttle: SharedThrottle, size_bytes: int) -> float:
    began_s = live.clock.monotonic_s()
    throttle.spend(live.replica(2), size_bytes)
    return live.clock.monotonic_s() - began_s


def test_a_bucket_is_the_same_to_all_that_copy_to_a_broker(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    one, other = (SharedThrottle(100, live.clock) for _ in range(2))
    assert spent_s(live, one, 100) == pytest.approx(0)
    assert spent_s(live, other, 100) == pytest.approx(1)
    assert spent_s(live, one, 50) == pytest.approx(0.5)
    assert pickle.loads(pickle.dumps(SharedThrottle(7, ManualClock(), 2))).bytes_per_s == 7


def test_the_bucket_keeps_few_files(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    throttle = SharedThrottle(1000, live.clock)
    for _ in range(30):
        throttle.spend(live.replica(2), 1)
    names = [stored.name for stored in live.store(2).list("") if REPLICATION_THROTTLE in stored.name]
    assert 0 < len(names) <= throttles._KEPT + 1
    live.clock.sleep(2 * 24 * 60 * 60)
    live.cluster.vacuum()
    assert {*names} <= live.store(2).names(""), "it is no litter"


def test_a_copy_with_a_short_wait_copies_the_paid_part_and_leaves_the_rest(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    follower = live.replica(2)
    throttle = pickle.loads(pickle.dumps(SharedThrottle(100, live.clock, most_s=2)))
    throttle._clock = live.clock
    assert throttle.spend(follower, 300)
    assert spent_s(live, throttle, 100) == pytest.approx(2), "what was copied is paid for later"
    assert not throttle.spend(follower, 1)
    live.clock.sleep(5)
    assert spent_s(live, throttle, 1) == 0


@pytest.mark.parametrize("content", [b"9" * 20, b"\xff", b"9" * 1000, b""])
def test_a_bucket_of_a_stranger_ends(tmp_path: Path, content: bytes) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    throttle = SharedThrottle(throttles._MOST_BYTES, live.clock)
    throttle.spend(live.replica(2), 1)
    (name,) = [stored.name for stored in live.store(2).list("") if REPLICATION_THROTTLE in stored.name]
    live.store(2).delete([name])
    live.store(2).create(name, content)
    assert spent_s(live, throttle, 1) <= 1.01


def test_if_no_bucket_can_be_kept_each_driver_keeps_to_the_rate_by_itself(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()

    faults.refuse(StorageError("not now"), of=REPLICATION_THROTTLE)
    throttle = SharedThrottle(100, live.clock)
    assert spent_s(live, throttle, 300) == pytest.approx(2)
