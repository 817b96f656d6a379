"""The options of a stream: Kafka's names, and one clear error for each mistake."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stratalog.engine.reading.stream_options import (
    SourceOptions,
    Start,
    Subscription,
    batch_options,
    source_options,
    stream_options,
)
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import OffsetSpec

NEEDED = {"cluster": "cluster.toml", "topic": "trips"}


def options(**given: str) -> SourceOptions:
    return source_options({**NEEDED, **given})


def test_a_stream_needs_a_cluster_and_a_topic_and_begins_at_the_end() -> None:
    assert options() == SourceOptions("cluster.toml", Subscription(("trips",)), OffsetSpec.LATEST)


def test_names_are_compared_without_case_and_what_spark_adds_is_left_alone() -> None:
    """Spark passes all names in lower case."""
    given = source_options(
        {
            **NEEDED,
            "maxrowspertrigger": "100",
            "MAXBYTESPERTRIGGER": "2000",
            "failondataloss": "False",
            "client.rack": "a",
            "isolation": "read_committed",
            "minpartitions": "4",
            "group": "g",
            "includeheaders": "false",
            "columns": "offset, value.carrier",
            "checkpointLocation": "cp",
        }
    )
    assert given == SourceOptions(
        "cluster.toml",
        Subscription(("trips",)),
        include_headers=False,
        max_rows=100,
        max_bytes=2000,
        min_partitions=4,
        fail_on_data_loss=False,
        columns=("offset", "value.carrier"),
        group="g",
        client_rack="a",
        isolation=Isolation.READ_COMMITTED,
    )


def test_the_argument_of_load_is_the_topic() -> None:
    assert source_options({"cluster": "c", "path": "trips"}).topics == Subscription(("trips",))
    with pytest.raises(InvalidCallError, match="the options topic and path are the same"):
        options(path="trips")


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        ({"subscribe": "trips, rides"}, Subscription(("trips", "rides"))),
        ({"subscribePattern": "trips-.*"}, Subscription(pattern="trips-.*")),
        (
            {"assign": '{"trips": [2, 0], "rides": [0]}'},
            Subscription(("trips", "rides"), assigned={"trips": (0, 2), "rides": (0,)}),
        ),
    ],
)
def test_kafkas_three_ways_to_say_what_is_read(given: dict[str, str], reads: Subscription) -> None:
    assert source_options({"cluster": "c", **given}).topics == reads


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "none is given"),
        ({"topic": "a", "subscribe": "a"}, "topic and subscribe are given"),
        ({"path": "a", "assign": "{}"}, "topic and assign are given"),
        ({"subscribe": "a,b", "subscribePattern": "a"}, "subscribe and subscribePattern are given"),
        ({"subscribe": "a,,b"}, "the option subscribe is 'a,,b'"),
        ({"subscribe": "a,a"}, "names of topics, each once"),
        ({"assign": "trips"}, "the option assign is 'trips': give partitions by topic as JSON"),
        ({"assign": '{"trips": []}'}, "the option assign is"),
        ({"assign": '{"trips": [0, 0]}'}, "the option assign is"),
        ({"assign": '{"trips": [-1]}'}, "the option assign is"),
        ({"subscribe": "a,b", "startingOffsets": '{"0": 1}'}, "startingOffsets is"),
        (
            {"subscribe": "a,b", "startingOffsets": '{"c": {"0": 1}}'},
            "for topic 'c', but the stream reads 'a', 'b'",
        ),
        ({"subscribe": "a", "startingOffsetsByTimestamp": "earliest"}, "give milliseconds since 1970"),
        ({"subscribe": "a", "startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"}, "are both given"),
        ({"subscribe": "a", "includeHeaders": "1"}, "includeHeaders is '1': give true or false"),
    ],
)
def test_a_bad_subscription_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        source_options({"cluster": "c", **given})
    assert message in str(caught.value)


def test_kafkas_name_of_the_limit_is_understood() -> None:
    assert options(maxOffsetsPerTrigger="7").max_rows == 7


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"startingOffsets": "earliest"}, OffsetSpec.EARLIEST),
        ({"startingOffsets": "Latest"}, OffsetSpec.LATEST),
        (
            {"startingOffsets": '{"0": 17, "1": -2, "2": -1}'},
            {("trips", 0): 17, ("trips", 1): OffsetSpec.EARLIEST, ("trips", 2): OffsetSpec.LATEST},
        ),
        ({"startingOffsets": '{"trips": {"0": 0}}'}, {("trips", 0): 0}),
        (
            {"startingOffsetsByTimestamp": '{"trips": {"0": 1370044800000}}'},
            {("trips", 0): datetime(2013, 6, 1, tzinfo=UTC)},
        ),
        ({"startingTimestamp": "1370044800000"}, datetime(2013, 6, 1, tzinfo=UTC)),
        ({"startingTimestamp": "2013-06-01T02:00:00+02:00"}, datetime(2013, 6, 1, tzinfo=UTC)),
        ({"startingTimestamp": "2013-06-01T00:00Z"}, datetime(2013, 6, 1, tzinfo=UTC)),
    ],
)
def test_options_say_where_a_stream_begins(given: dict[str, str], start: Start) -> None:
    assert options(**given).start == start


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startngOffsets": "latest"}, "unknown option 'startngOffsets'; did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x"}, "use the option cluster, the path of the cluster file"),
        ({"kafka.sasl.mechanism": "x"}, "is Kafka's: credentials come from the environment"),
        ({"kafka.fetch.min.bytes": "x"}, "no Kafka client runs here, so omit it"),
        ({"minOffsetsPerTrigger": "9"}, "use a longer trigger interval"),
        ({"startingOffsetsByTimestampStrategy": "later"}, "give error or latest"),
        ({"topic": " "}, "the option topic is missing"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first': give earliest, latest"),
        ({"startingOffsets": '{"0": -3}'}, "startingOffsets is"),
        ({"startingOffsets": '{"0": true}'}, "startingOffsets is"),
        ({"startingOffsets": '{"0": 1.5}'}, "startingOffsets is"),
        ({"startingOffsets": "[]"}, "startingOffsets is"),
        ({"startingOffsets": '{"flights": {"0": 1}}'}, "is for topic 'flights', but the stream reads 'trips'"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "are both given"),
        ({"startingTimestamp": "1370044800000000"}, "not between the years 1 and 9999: give milliseconds"),
        ({"startingOffsetsByTimestamp": f'{{"trips": {{"0": {2**63 - 1}}}}}'}, "not between the years"),
        ({"startingTimestamp": "1" * 5000}, "not between the years"),
        ({"startingTimestamp": "--5"}, "is not a time"),
        ({"startingTimestamp": "yesterday"}, "or a time: 'yesterday' is not a time"),
        ({"startingTimestamp": "--5"}, "or a time: '--5' is not a time"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is '0': give a number above 0"),
        ({"maxBytesPerTrigger": "1g"}, "maxBytesPerTrigger is '1g'"),
        ({"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "are the same"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is 'no': give true or false"),
        ({"columns": "offset,,key"}, "the option columns is"),
        ({"columns": "offset,offset"}, "names a column twice"),
        (
            {"isolation": "serializable"},
            "unknown isolation 'serializable': use one of read_uncommitted, read_committed",
        ),
    ],
)
def test_an_error_names_the_option(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        options(**given)
    assert message in str(caught.value)


# -------------------------------------------------------------------------------------------- batch


def test_a_batch_read_is_from_earliest_to_latest_unless_it_says_otherwise() -> None:
    assert batch_options(NEEDED) == SourceOptions(
        "cluster.toml", Subscription(("trips",)), OffsetSpec.EARLIEST, OffsetSpec.LATEST
    )
    given = batch_options({**NEEDED, "startingoffsets": '{"0": 3}', "endingOffsets": '{"0": -1}'})
    assert given.start == {("trips", 0): 3}
    assert given.end == {("trips", 0): OffsetSpec.LATEST}
    june = datetime(2013, 6, 1, tzinfo=UTC)
    assert batch_options({**NEEDED, "endingTimestamp": "2013-06-01T00:00Z"}).end == june
    by_time = '{"trips": {"0": 1370044800000}}'
    assert batch_options({**NEEDED, "endingOffsetsByTimestamp": by_time}).end == {("trips", 0): june}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxRowsPerTrigger": "1"}, "the option maxRowsPerTrigger applies only to streams"),
        ({"GROUP": "g"}, "the option group applies only to streams"),
        ({"startingOffsets": "latest"}, "startingOffsets = latest would make a batch read empty"),
        ({"startingOffsets": '{"0": -1}'}, "startingOffsets = latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets = earliest"),
        ({"endingOffsets": '{"0": -2}'}, "endingOffsets = earliest"),
        ({"endingOffsets": "last"}, "the option endingOffsets is 'last': give earliest, latest"),
        (
            {"endingTimestamp": "2013-06-01"},
            "'2013-06-01', without a time zone, and Spark does not pass the time zone of the session: write",
        ),
        ({"endingTimestamp": "x"}, "the option endingTimestamp, milliseconds since 1970 or a time"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "endingOffsets and endingTimestamp are both given"),
    ],
)
def test_a_batch_read_refuses_options_of_streams_and_impossible_bounds(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidCallError) as caught:
        batch_options({**NEEDED, **given})
    assert message in str(caught.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidCallError, match="the option endingOffsets applies only to batch reads"):
        stream_options({**NEEDED, "endingoffsets": "latest"})
