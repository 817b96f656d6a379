"""Names in storage (protocol section 1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.errors import InvalidCallError, InvalidTopicError
from stratalog.partitions.paths import (
    GREATEST_OFFSET,
    SNAPSHOT_TABLES,
    CheckpointName,
    ChunkName,
    ClaimName,
    DataName,
    EpochName,
    LocalStartName,
    Name,
    WatermarkName,
    base_name,
    check_topic_name,
    descriptions_path,
    incarnation_folder_of,
    is_top_folder,
    join,
    name_in,
    parse_file_path,
    parse_name,
    parse_published_path,
    parse_remote_segment_path,
    parse_replica_path,
    parse_topic_folder,
    published_path,
    remote_segment_path,
    replica_path,
    topic_folder,
    voter_path,
)

offsets = st.integers(0, GREATEST_OFFSET)
epochs = st.integers(0, 10**10 - 1)
spans = st.tuples(offsets, offsets).map(sorted).filter(lambda span: span[0] < span[1])
data_names = st.one_of(
    st.builds(DataName, offsets, st.none(), epochs),
    st.builds(lambda span, epoch: DataName(span[0], span[1], epoch), spans, epochs),
)
rewritten = st.builds(
    lambda span, epoch, generation: DataName(span[0], span[1], epoch, generation),
    *(spans, epochs, st.integers(1, 10**10 - 1)),
)
generations = st.integers(1, 10**10 - 1)
names = st.one_of(
    data_names,
    rewritten,
    st.builds(EpochName, epochs),
    st.builds(WatermarkName, offsets, epochs),
    st.builds(LocalStartName, offsets),
    st.builds(ClaimName, epochs),
    st.builds(CheckpointName, offsets, epochs),
    st.builds(ChunkName, offsets, epochs, offsets),
    st.builds(CheckpointName, offsets, epochs, generations),
    st.builds(ChunkName, offsets, epochs, offsets, generations),
)
ids = st.text("0123456789abcdef", min_size=32, max_size=32)
topics = st.text("abcXYZ019._-", min_size=1, max_size=40)

SAME_KIND = [
    st.lists(st.builds(DataName, offsets, st.none(), epochs)),
    st.lists(st.builds(lambda span, epoch: DataName(span[0], span[1], epoch), spans, epochs)),
    st.lists(rewritten),
    st.lists(st.builds(EpochName, epochs)),
    st.lists(st.builds(WatermarkName, offsets, epochs)),
    st.lists(st.builds(LocalStartName, offsets)),
    st.lists(st.builds(CheckpointName, offsets, epochs)),
    st.lists(st.builds(ChunkName, offsets, epochs, offsets)),
    st.lists(st.builds(CheckpointName, offsets, epochs, generations)),
]


@given(names)
def test_every_name_is_read_back_as_it_was_built(name: Name) -> None:
    assert parse_name(str(name)) == name


@given(st.one_of(*SAME_KIND))
def test_names_sort_as_numbers(of_one_kind: list[Name]) -> None:
    """Section 1: offsets are 20 digits and epochs 10, so that names sort as numbers."""
    assert sorted(of_one_kind, key=str) == sorted(of_one_kind)


@given(st.lists(data_names))
def test_appends_and_merged_segments_sort_together(mixed: list[DataName]) -> None:
    assert sorted(mixed, key=str) == sorted(mixed)


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "broker.json",
        "part-00000.snappy.parquet",
        "0.1.parquet",
        "00000000000000000000.0000000001.parquet.tmp",
        "00000000000000000000.0000000001.parquet\n",
        "x00000000000000000000.0000000001.parquet",
        "000000000000000000000.0000000001.parquet",
        "00000000000000000007-00000000000000000007.0000000001.parquet",
        "00000000000000000007-00000000000000000003.0000000001.parquet",
        "00000000000000000007.0000000001.0000000001.parquet",
        "00000000000000000007-00000000000000000009.0000000001.0000000000.parquet",
        "00000000000000000007-00000000000000000009.0000000001.1.parquet",
        "-0000000000000000001.local",
        "0000000001.EPOCH",
        "\N{ARABIC-INDIC DIGIT ONE}" * 10 + ".epoch",
        "\N{ARABIC-INDIC DIGIT ONE}" * 20 + ".local",
        "00000000000000000007-00000000000000000002.checkpoint",
        "00000000000000000007-0000000002.0000000000.checkpoint",
        "00000000000000000007-0000000002.3.checkpoint",
        "00000000000000000007-0000000002.checkpoint.part",
        "00000000000000000007-0000000002.checkpoint.00000000000000000000",
    ],
)
def test_a_foreign_name_is_not_ours(foreign: str) -> None:
    assert parse_name(foreign) is None


@given(st.text(max_size=60))
def test_a_parsed_name_is_written_as_the_same_text(text: str) -> None:
    """No two names have one meaning: an exclusive create must collide whenever the meaning does."""
    name = parse_name(text)
    assert name is None or str(name) == text


@given(st.integers(0, 2**31 - 1), offsets, epochs, epochs, ids)
def test_a_published_file_is_read_back(partition: int, end: int, epoch: int, generation: int, an_id: str) -> None:
    parts = (partition, CheckpointName(end, epoch, generation), an_id)
    assert parse_published_path(published_path(*parts)) == parts
    assert parse_remote_segment_path(published_path(*parts)) is None


@given(topics, ids)
def test_a_topic_folder_is_read_back_whatever_the_topic_is_called(topic: str, topic_id: str) -> None:
    assert parse_topic_folder(topic_folder(topic, topic_id)) == (topic, topic_id)


@pytest.mark.parametrize("folder", ["", "events", "-" + "a" * 32, "events-" + "g" * 32, "events_" + "a" * 32])
def test_a_foreign_folder_is_no_topic(folder: str) -> None:
    assert parse_topic_folder(folder) is None


@given(ids, st.sampled_from(["", "etag.8+123"]))
def test_every_folder_below_a_root_is_known_as_one(an_id: str, root: str) -> None:
    replica = replica_path(incarnation_folder_of(an_id, root), "t", an_id, 0, 0)
    for path in (
        replica,
        voter_path(an_id),
        topic_folder("t", an_id),
        descriptions_path("c"),
        f"{SNAPSHOT_TABLES}/t",
    ):
        assert is_top_folder(path.partition("/")[0]), path


@pytest.mark.parametrize(
    "folder", ["", "cluster-b", "a" * 31, "a" * 32 + ".", "a" * 32 + ".12345678x", ".staging"]
)
def test_a_foreign_folder_is_none_of_a_root(folder: str) -> None:
    assert not is_top_folder(folder)


@given(st.integers(0, 2**31 - 1), data_names, st.integers(0, 99))
def test_a_remote_path_is_read_back(partition: int, name: DataName, rebuilt: int) -> None:
    assert parse_remote_segment_path(remote_segment_path(partition, name, rebuilt)) == (partition, name, rebuilt)


@pytest.mark.parametrize(
    "path",
    [
        "_delta_log/00000000000000000000.json",
        "0/0000000001.epoch",
        "00000000000000000000.0000000001.parquet",
        "\N{SUPERSCRIPT TWO}/00000000000000000000.0000000001.parquet",
        "07/00000000000000000000.0000000001.parquet",
        "7/0/00000000000000000000.0000000001.parquet",
        "7/01/00000000000000000000.0000000001.parquet",
        "7/1/1/00000000000000000000.0000000001.parquet",
        "7/00000000000000000007.0000000001.0000000001.parquet",
        "7/00000000000000000007-00000000000000000009.0000000001.0000000000.parquet",
    ],
)
def test_other_files_in_a_remote_table_are_no_segments(path: str) -> None:
    assert parse_remote_segment_path(path) is None


def test_incarnation_and_assignment_are_in_the_path() -> None:
    """Section 1 (!): zombies that knew a wiped root or a removed replica write to abandoned folders."""
    first = replica_path("a" * 32, "events", "b" * 32, 3, 17)
    assert first == f"{'a' * 32}/events-{'b' * 32}/3.17"
    assert replica_path("c" * 32, "events", "b" * 32, 3, 17) != first
    assert replica_path("a" * 32, "events", "d" * 32, 3, 17) != first
    assert replica_path("a" * 32, "events", "b" * 32, 3, 18) != first


@pytest.mark.parametrize("topic", ["events", "a.b_c-D9", "a" * 222])
def test_kafkas_topic_names_are_valid(topic: str) -> None:
    check_topic_name(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "a" * 223, "événements", "a\n"])
def test_other_topic_names_are_refused_by_name(topic: str) -> None:
    """The error is INVALID_TOPIC_EXCEPTION, as in Kafka."""
    with pytest.raises(InvalidTopicError) as refused:
        check_topic_name(topic)
    assert repr(topic) in str(refused.value)


def test_joining_drops_empty_parts_and_stray_slashes() -> None:
    assert join("a/", "", "/", "b", "/c/d") == "a/b/c/d"
    assert base_name(join("a", "b")) == "b"
    assert base_name("b") == "b"


def test_only_files_directly_in_a_folder_have_one_of_our_names_there() -> None:
    name = DataName(0, None, 1)
    assert parse_name(name_in("a/b", f"a/b/{name}")) == name
    assert parse_name(name_in("", str(name))) == name
    for elsewhere in (f"a/b/saved/{name}", f"a/bc/{name}", f"b/{name}"):
        assert parse_name(name_in("a/b", elsewhere)) is None
    assert parse_name(name_in("", f"a/{name}")) is None


MANY = "9" * 4400


@pytest.mark.parametrize(
    "path",
    [
        f"t-{'a' * 32}/{MANY}/00000000000000000000.0000000001.parquet",
        f"t-{'a' * 32}/{MANY}.7/00000000000000000000.0000000001.parquet",
    ],
)
def test_a_partition_of_more_digits_than_any_has_is_none(path: str) -> None:
    assert parse_file_path(path) is None
    assert parse_remote_segment_path(path.partition("/")[2]) is None
    assert parse_replica_path(f"{'b' * 32}/{path.rpartition('/')[0]}") is None
    assert parse_replica_path(f"{'b' * 32}/t-{'a' * 32}/0.{MANY}") is None


@pytest.mark.parametrize("suffix", [".0000000001.parquet", ".local", ".0000000001.hw", "-0000000001.checkpoint"])
def test_an_offset_of_more_than_64_bits_is_not_ours(suffix: str) -> None:
    assert parse_name(f"{GREATEST_OFFSET}{suffix}".rjust(20 + len(suffix), "0")) is not None
    assert parse_name(f"{2**63:020d}{suffix}") is None
    assert parse_name(f"{'9' * 20}{suffix}") is None


@pytest.mark.parametrize(
    "name", [ClaimName(10**10), EpochName(10**10), DataName(0, None, 10**10), DataName(10**20, None, 1)]
)
def test_no_name_has_more_digits_than_it_is_read_with(name: Name) -> None:
    with pytest.raises(InvalidCallError, match="cannot be part of a file name"):
        str(name)
