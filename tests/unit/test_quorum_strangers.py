"""An attacker writes to one voter of three: no driver is stopped, and the files are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.engine.quorum.batch import encode_batch
from stratalog.engine.quorum.bootstrap import find_log
from stratalog.engine.quorum.damage import FAR_AHEAD, believed_epoch
from stratalog.engine.quorum.inspection import inspect
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.engine.quorum.voter import Voter, VoterLook
from stratalog.partitions.errors import CorruptionError, NoMajorityError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import ClaimName, DataName
from tests.unit.quorum_harness import CLUSTER, IMPATIENT, Quorum, config, unreachable

FAR = 9_999_999_999


def three(commits: int = 3) -> Quorum:
    quorum = Quorum(3)
    log = quorum.log()
    for value in range(1, commits + 1):
        log.claim()
        log.commit(config(value))
    return quorum


def put(name: str, data: bytes = b"") -> Callable[[Quorum, int], None]:
    """Write a file under that name in the folder of a voter."""

    def written(quorum: Quorum, broker: int) -> None:
        voter = quorum.voters[broker - 1]
        path = f"{voter.folder}/{name}"
        quorum.stores[broker].delete([path])
        assert quorum.stores[broker].create(path, data)

    return written


def batch_of(name: DataName, cluster: str = CLUSTER) -> bytes:
    lineage = Lineage([(1, 0), (name.epoch, name.base_offset)])
    return encode_batch(cluster, BatchRecords.of(name, config(66), 0), lineage)


def last_replaced(data: bytes) -> Callable[[Quorum, int], None]:
    """The voter's last batch has other bytes."""

    def written(quorum: Quorum, broker: int) -> None:
        names = [name for name in quorum.names(broker) if name.endswith(".parquet")]
        put(max(names), data)(quorum, broker)

    return written


def last_gone(quorum: Quorum, broker: int) -> None:
    names = [name for name in quorum.names(broker) if name.endswith(".parquet")]
    quorum.stores[broker].delete([f"{quorum.voters[broker - 1].folder}/{max(names)}"])


def broker_file(data: bytes) -> Callable[[Quorum, int], None]:
    def written(quorum: Quorum, broker: int) -> None:
        quorum.stores[broker].delete(["broker.json"])
        quorum.stores[broker].create("broker.json", data)

    return written


def many_claims(quorum: Quorum, broker: int) -> None:
    for number in range(20):
        put(f"{FAR - 7 * number}.claim")(quorum, broker)


DIRECTORY = b'{"cluster_id":"c","broker_id":1,"directory_id":"%s"}'
HOSTILE = {
    "a claim of an epoch far ahead": put(f"{FAR}.claim", b"x"),
    "many claims far ahead": many_claims,
    "a claim of 600,000 more": put("0000600000.claim"),
    "a valid batch of an epoch far ahead": put(str(DataName(900, None, FAR)), batch_of(DataName(900, None, FAR))),
    "an empty batch": put("00000000000000000900.0000000900.parquet"),
    "a batch of garbage": put("00000000000000000900.0000000900.parquet", b"PAR1" * 100),
    "a batch beyond a gap": put(str(DataName(900, None, 900)), batch_of(DataName(900, None, 900))),
    "a batch at the greatest offset": put("08999999999999999999.0000000001.parquet"),
    "a batch of another cluster": put(str(DataName(4, None, 9)), batch_of(DataName(4, None, 9), "other")),
    "a batch inside another one's offsets": put("00000000000000000002.0000000007.parquet"),
    "its last batch emptied": last_replaced(b""),
    "its last batch garbage": last_replaced(b"\x00" * 1000),
    "its last batch gone": last_gone,
    "a snapshot beyond the log": put("00000000000000000900-0000000002.checkpoint", b"x"),
    "a snapshot of an epoch far ahead": put(f"00000000000000000002-{FAR}.checkpoint", b"x"),
    "a snapshot of another history": put("00000000000000000002-0000000700.checkpoint", b"x"),
    "a snapshot of the first epoch at the greatest offset": put("08999999999999999999-0000000001.checkpoint"),
    "a part of a snapshot": put("08999999999999999999-0000000001.checkpoint.08999999999999999999.part"),
    "foreign names": put("99999999999999999999.9999999999.parquet"),
    "a broker file of brackets": broker_file(b'{"x":' + b"[" * 5000),
    "a broker file that leads elsewhere": broker_file(DIRECTORY % b"../../../x"),
    "an empty broker file": broker_file(b""),
    "a broker file of another incarnation": broker_file(DIRECTORY % (b"f" * 32)),
    "a broker file of another cluster": broker_file(
        b'{"cluster_id":"d","broker_id":1,"directory_id":"%s"}' % (b"f" * 32)
    ),
    "no broker file": lambda quorum, broker: quorum.stores[broker].delete(["broker.json"]),
}


def value_of(log_image: object) -> str:
    return getattr(log_image, "configs")["segment.bytes"]  # noqa: B009 - of any image


@pytest.mark.sample(25)
@pytest.mark.parametrize("broker", [1, 2, 3])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_one_hostile_voter_stops_nobody(hostile: str, broker: int) -> None:
    quorum = three()
    living = quorum.log()
    living.claim()
    living.commit(config(4))
    HOSTILE[hostile](quorum, broker)
    # Opening the cluster finds the log and its voters.
    found = find_log(CLUSTER, [1, 2, 3], quorum.stores, note=quorum.notes.append)
    assert value_of(found.state.image) == "4"
    assert {voter.broker_id for voter in found.voters} == {1, 2, 3}
    # New drivers read and commit; so do drivers that have claimed before, and resumed ones.
    fresh = quorum.log(1, hint=found.state)
    assert value_of(fresh.read()) == "4"
    for value, log in ((5, fresh), (6, quorum.log(2)), (7, living), (8, fresh)):
        log.read()
        log.claim()
        assert value_of(log.commit(config(value))) == str(value)
    assert value_of(quorum.log(3).read()) == "8"
    # All commits are on the other two voters, where the log can be kept short.
    others = [one for one in (1, 2, 3) if one != broker]
    for other in others:
        assert sum(name.endswith(".parquet") for name in quorum.names(other)) == 9
    done = keep_up(quorum.log(4), quorum.clock, lag_ms=0)
    live = {one.voter.broker_id for one in done.voters if one.failure is None and one.whole}
    assert live >= set(others)
    assert value_of(quorum.log(5).read()) == "8"
    for name in quorum.names(broker):
        assert len(name.partition(".")[0].partition("-")[0]) in (10, 20)


@pytest.mark.parametrize(
    "hostile",
    [
        "a claim of an epoch far ahead",
        "a valid batch of an epoch far ahead",
        "an empty batch",
        "a batch beyond a gap",
        "a batch of another cluster",
        "a snapshot beyond the log",
        "a snapshot of another history",
        "a broker file of brackets",
        "a broker file that leads elsewhere",
    ],
)
def test_the_voter_is_named_where_the_operator_looks(hostile: str) -> None:
    quorum = three()
    HOSTILE[hostile](quorum, 2)
    found = inspect(quorum.log(patience=IMPATIENT))
    assert [one.voter.broker_id for one in found.voters if one.error is not None] == [2]
    assert found.end == 4
    assert found.epoch < 100


def test_a_voter_far_ahead_is_reported_by_one_more_than_a_minority() -> None:
    quorum = three()
    ids = [voter.id for voter in quorum.voters]

    def look(voter: Voter, epoch: int) -> VoterLook:
        return VoterLook(voter, (epoch,), (), (), None)

    def believed(*epochs: int, known: int = 0) -> int:
        looks = [look(voter, epoch) for voter, epoch in zip(quorum.voters, epochs, strict=False)]
        return believed_epoch(looks, ids, known)

    assert believed(FAR, 5, 7) == 7
    assert believed(5, FAR) == 5
    assert believed(5, FAR, known=9) == 9
    assert believed(FAR, FAR, 3) == FAR, "a majority is believed"
    assert believed(7) == 0


def test_an_honest_voter_that_is_ahead_of_those_that_were_away_is_left_out_until_another_one_is_back() -> None:
    """This is safe, but the log is not available: a driver that was away for so long finds no majority without a
    voter that stayed.
    """
    quorum = Quorum(3)
    for broker in (1, 2):
        put(str(ClaimName(2 * FAR_AHEAD)))(quorum, broker)
    away = quorum.hooked()
    away[0].hook = unreachable
    with pytest.raises(NoMajorityError, match="has an epoch that no driver has claimed"):
        quorum.log(through=away, patience=IMPATIENT).read()
    log = quorum.log()
    log.claim()
    assert value_of(log.commit(config(1))) == "1"
    assert value_of(quorum.log(1).read()) == "1"


def test_no_epoch_of_eleven_digits_is_ever_claimed() -> None:
    quorum = Quorum(1)
    put(str(ClaimName(FAR)))(quorum, 1)
    with pytest.raises(CorruptionError, match="the greatest possible epoch"):
        quorum.log(patience=IMPATIENT).claim()
    assert all(len(name.partition(".")[0]) in (10, 20) for name in quorum.names(1))


def test_a_record_that_is_damaged_on_every_voter_is_corruption() -> None:
    quorum = three()
    for broker in (1, 2, 3):
        last_replaced(b"")(quorum, broker)
    with pytest.raises(CorruptionError):
        quorum.log(patience=IMPATIENT).read()
    with pytest.raises(CorruptionError):
        find_log(CLUSTER, [1, 2, 3], quorum.stores, cached=LogState())
