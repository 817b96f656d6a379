"""A whole cluster with a key: the key's source, the signed files, and the cluster without the key."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.config.key_source import KEY_VARIABLE, key_file
from stratalog.engine.upkeep.tiering.point import read_description
from stratalog.jobs import quorum as quorum_job
from stratalog.jobs import topics as topics_job
from stratalog.partitions import paths
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import ClusterKeyError, CorruptionError, UnsignedError
from stratalog.partitions.paths import DESCRIPTIONS, ClaimName
from stratalog.partitions.root import format_root
from stratalog.partitions.store.local import LocalStore
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.restore_harness import Heir, partly_tiered

SECRET, OTHER = b"\x00\xffthe secret that nobody is to see", b"another secret, also of 32 bytes"
TEXT, OTHER_TEXT = base64.b64encode(SECRET).decode(), base64.b64encode(OTHER).decode()


@pytest.fixture
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers have the key, from their environment."""
    monkeypatch.setenv(KEY_VARIABLE, TEXT)


def nobody() -> str | None:
    """A process without a key."""
    return None


def without_key(live: LiveCluster) -> Cluster:
    return with_parts(Cluster, clock=live.clock, new_id=live.new_id, opener=live.open_root).open(
        live.file, cluster_key=nobody
    )


def voter_folder(live: LiveCluster, broker: int = 1) -> str:
    (voter,) = (one for one in live.cluster.image.voters if one.broker_id == broker)
    return paths.voter_path(voter.directory_id)


@pytest.mark.slow
@pytest.mark.usefixtures("with_key")
def test_a_cluster_with_a_key_lives_as_any_other(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered()
    live.append(["a", "b"]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.quorum.snapshot().raise_for_failures()
    for cluster in (live.driver(), without_key(live)):
        assert cluster.verify(deep=True).failures == []
        assert cluster.fetch("t", 0, 0).records.num_rows == 2
    assert live.cluster.drill().failures == []


@pytest.mark.usefixtures("with_key")
def test_a_driver_without_the_key_appends_and_changes_no_metadata(tmp_path: Path) -> None:
    """Records are not signed: only changes to the drivers' knowledge of the cluster need the key."""
    live = LiveCluster(tmp_path)
    live.topic()
    driver = without_key(live)
    live.append(["a"], driver=driver).raise_for_failures()
    for change in (
        lambda: driver.topics.create("another"),
        lambda: driver.topics.alter_configs("t", {"retention.ms": "1"}),
        lambda: driver.quorum.snapshot(),
        lambda: driver.quorum.add_voter(2),
    ):
        with pytest.raises(ClusterKeyError, match=KEY_VARIABLE):
            change()
    assert live.driver().topics.list().failures == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (" ,\n", "is empty"),
        ("nobase64!atall!!", "secret 1 .* is not valid base64"),
        (base64.b64encode(b"only 31 bytes, which are too few").decode()[:-4], "has 30 bytes, but needs 32"),
        (f"{TEXT} c2hvcnQ=", "secret 2 .* has 5 bytes"),
    ],
)
def test_a_key_that_is_invalid_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    live = LiveCluster(tmp_path)
    monkeypatch.setenv(KEY_VARIABLE, text)
    with pytest.raises(ClusterKeyError, match=says) as refused:
        live.driver()
    chain = f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}"
    assert not any(word in chain for word in text.split() if len(word) > 7)


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_a_key_file_whose_path_no_file_has_is_refused_as_such(path: str) -> None:
    with pytest.raises(ClusterKeyError, match="that is not a valid path") as refused:
        key_file(path)()
    assert str(refused.value).isprintable()


def test_a_key_comes_from_a_file_or_from_a_secret_provider(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    mounted = tmp_path / "key"
    with pytest.raises(ClusterKeyError, match="cannot be read"):
        with_parts(Cluster, opener=live.open_root).sign(live.file, cluster_key=key_file(mounted))
    mounted.write_text(f"{TEXT}\n{OTHER_TEXT}\n")
    with_parts(Cluster, opener=live.open_root).sign(live.file, cluster_key=key_file(mounted)).raise_for_failures()
    provided = with_parts(Cluster, opener=live.open_root).open(live.file, cluster_key=lambda: TEXT)
    provided.topics.create("t")
    with pytest.raises(CorruptionError, match="its signature is wrong"):
        with_parts(Cluster, opener=live.open_root).open(live.file, cluster_key=lambda: OTHER_TEXT)
    with pytest.raises(ClusterKeyError, match="cannot be signed without a key"):
        with_parts(Cluster, opener=live.open_root).sign(live.file, cluster_key=nobody)


def test_jobs_take_the_key_from_a_file_and_sign_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    live = LiveCluster(tmp_path, on_disk=True)
    mounted = tmp_path / "key"
    mounted.write_text(TEXT)
    always = ["--cluster", str(live.file)]
    key = ["--cluster-key-file", str(mounted)]
    assert topics_job.main(["create", "before", *always]) == 0
    assert quorum_job.main(["sign", *always]) == 2
    assert quorum_job.main(["sign", "--dry-run", *always, *key]) == 0
    assert topics_job.main(["create", "meanwhile", *always]) == 0
    assert quorum_job.main(["sign", *always, *key]) == 0
    assert topics_job.main(["create", "after", *always]) == 2
    assert topics_job.main(["create", "after", *always, *key]) == 0
    assert topics_job.main([*key, "create", "at-last", *always]) == 0
    assert topics_job.main(["list", *always]) == 0
    text = capsys.readouterr()
    assert "CLUSTER_KEY" in text.err
    assert TEXT not in text.err + text.out


@pytest.mark.usefixtures("with_key")
def test_verify_and_describe_name_what_a_stranger_left(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    folder = live.root(1) / voter_folder(live)
    (folder / str(ClaimName(9_000_000))).write_bytes(b"x")
    for report in (live.driver().verify(), live.driver().quorum.describe()):
        (failure,) = report.failures
        assert failure.code == "UNSIGNED"
        assert "0009000000.claim" in failure.message


@pytest.mark.usefixtures("with_key")
def test_a_root_that_a_stranger_has_formatted_is_not_registered(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    before = live.cluster.image.broker(3)
    live.wipe(3)
    format_root(live.store(3), "c", 3, lambda: "e" * 32)
    failed = live.driver().bootstrap([3], check=False)
    assert [failure.code for failure in failed.failures] == ["UNSIGNED"]
    assert live.driver().image.broker(3).directory_id == before.directory_id
    live.wipe(3)
    live.driver().bootstrap([3]).raise_for_failures()
    assert live.driver().image.broker(3).directory_id not in (before.directory_id, "e" * 32)


# ----------------------------------------------------------------------------------------- restore


def descriptions(live: LiveCluster, cluster_id: str = "c") -> list[Path]:
    return sorted((live.remote / DESCRIPTIONS / cluster_id).iterdir())


@pytest.mark.usefixtures("with_key")
@pytest.mark.slow
def test_a_cluster_is_restored_from_what_was_signed(tmp_path: Path) -> None:
    live = partly_tiered(tmp_path)
    heir = Heir(live)
    heir.restore().raise_for_failures()
    assert heir.open().fetch("t", 0, 0).records.num_rows == 6
    remote = LocalStore(str(live.remote))
    assert read_description(remote, "heir", ClusterKey("heir", [SECRET])).topics


def unsigned(content: bytes) -> bytes:
    found = json.loads(content)
    assert found.pop("tag")
    return json.dumps(found, separators=(",", ":")).encode()


def renamed(path: Path, content: bytes, offset: int) -> None:
    """Give it the name that its content has at an offset."""
    from stratalog.engine.metadata.description import digest

    (path.parent / f"{offset:020d}.{digest(content)}.json").write_bytes(content)


@pytest.mark.slow
@pytest.mark.usefixtures("with_key")
@pytest.mark.parametrize("forge", [unsigned, bytes], ids=["not signed", "signed for another offset"])
def test_a_description_of_a_stranger_is_refused_and_superseded_by_none(
    tmp_path: Path, forge: Callable[[bytes], bytes]
) -> None:
    live = partly_tiered(tmp_path)
    path = descriptions(live)[-1]
    renamed(path, forge(path.read_bytes()), 10**6)
    heir = Heir(live)
    with pytest.raises(UnsignedError, match="00001000000"):
        heir.restore()
    assert heir.untouched
    live.cluster.topics.create("later", configs={})
    live.append(["more"])
    count = len(descriptions(live))
    (failure,) = (one for one in live.cluster.tier(check=False).failures if one.item == "restore point")
    assert failure.code == "UNSIGNED"
    assert len(descriptions(live)) == count + 1
    live.append(["and more"])
    live.cluster.tier(check=False)
    assert len(descriptions(live)) == count + 1


@pytest.mark.slow
def test_without_the_key_a_signed_cluster_is_restored_unverified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, TEXT)
    live = partly_tiered(tmp_path)
    monkeypatch.delenv(KEY_VARIABLE)
    Heir(live).restore().raise_for_failures()


def test_without_the_key_no_restore_point_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, TEXT)
    live = partly_tiered(tmp_path)
    live.cluster.topics.alter_configs(None, {"retention.ms": "1000000"})
    before = descriptions(live)
    monkeypatch.delenv(KEY_VARIABLE)
    (failure,) = live.driver().tier(check=False).failures
    assert (failure.item, failure.code) == ("restore point", "CLUSTER_KEY")
    assert descriptions(live) == before


# ------------------------------------------------------------------------------------ the schedule


@pytest.mark.usefixtures("with_key")
def test_a_schedule_of_a_stranger_keeps_nothing_from_being_tiered(tmp_path: Path) -> None:
    """The foreign schedule would say that no partition is due for a long time. The previous list is used
    instead.
    """
    live = LiveCluster(tmp_path)
    live.tiered()
    live.append(["a"]).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    store = live.store(1)
    (path,) = (one.name for one in store.list("") if one.name.endswith(".schedule"))
    content = store.read(path)
    body, _, tag = content.partition(b"\n\n")
    assert len(tag) == 64
    assert live.driver().tier(due=True).rows == []
    version = int(path[-29:-9])
    store.create(f"{path[:-29]}{version + 5:020d}.schedule", body.replace(b"1", b"9"))
    assert live.driver().tier(due=True).rows == []
    live.clock.advance_ms(60_000)
    assert len(live.driver().tier(due=True).rows) == 1
    assert live.driver().tier(due=True).rows == [], "it has rewritten the list"


# ----------------------------------------------------------------------------- where it is not


@pytest.mark.usefixtures("with_key")
def test_the_key_is_in_nothing_that_is_stored_or_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.file.write_text(live.file.read_text().replace("voters", 'cache = "cache"\nvoters'))
    live.tiered()
    live.append(["a"]).raise_for_failures()
    driver = live.driver()
    reports = [driver.tier(), driver.verify(deep=True), driver.quorum.snapshot(), driver.quorum.describe()]
    shown = [str(report) + report.to_json() for report in reports]
    shown += [repr(ports_of(driver)), str(capfd.readouterr())]
    spellings = [SECRET, TEXT.encode(), SECRET.hex().encode(), repr(SECRET).encode()]
    stored = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"log.segment.tag" in content for content in stored)
    for spelling in spellings:
        assert not any(spelling in content for content in stored)
        assert not any(spelling in text.encode() for text in shown)
