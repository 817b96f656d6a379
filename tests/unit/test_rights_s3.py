"""Rights on a real S3 server: users have the rights of the policies that `stratalog policy` prints, and no
others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import botocore.config
import botocore.session
import pytest

from bench.s3_server import (
    ACCESS_KEY,
    OTHER_CREDENTIALS,
    SECRET_KEY,
    S3Endpoint,
    credentials,
    principal,
    running_server,
)
from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import StorageAuthorizationError, StratalogError
from stratalog.partitions.store import StoreOptions, open_store, s3_session
from tests.unit.cluster_harness import TIERED
from tests.unit.harness import batch
from tests.unit.transact_harness import rows

pytestmark = pytest.mark.s3

PREFIX = "stratalog"
TOPICS = ["t", "u"]
"""The topics of those roles that have some. There is another one, ``other``."""
ROLES: Mapping[str, tuple[str, list[str] | None]] = {
    "reader": ("reader", TOPICS),
    "producer": ("producer", TOPICS),
    "operator": ("operator", TOPICS),
    "readsall": ("reader", None),
    "appendsall": ("producer", None),
    "chief": ("operator", None),
}
"""Users, each with a role and its topics."""
USERS = (*ROLES, "nodelete", "nobody")


def bucket_policy(admin: Cluster, bucket: str) -> str:
    """The printed policies, unchanged, for the users of the server: only their principals are added."""
    statements = [
        {**statement, "Sid": f"{user}{statement['Sid']}", "Principal": {"AWS": principal(user)}}
        for user, (role, topics) in ROLES.items()
        for statement in json.loads(admin.policy(role, topics, storage="aws"))["Statement"]
    ]
    objects = f"arn:aws:s3:::{bucket}/{PREFIX}/new/*"
    statements += [
        {"Effect": "Allow", "Action": action, "Resource": on, "Principal": {"AWS": principal("nodelete")}}
        for action, on in (
            ("s3:ListBucket", f"arn:aws:s3:::{bucket}"),
            ("s3:GetObject", objects),
            ("s3:PutObject", objects),
        )
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@dataclass
class OnS3:
    """A cluster of three voters on one bucket, with tiered records; drivers of its users."""

    folder: Path
    endpoint: S3Endpoint

    def file(self, user: str) -> Path:
        """A cluster file with that user's credentials."""
        where = f"s3://{self.endpoint.bucket}/{PREFIX}"
        lines = [
            f'[cluster]\nid = "c"\nremote = "{where}/remote"\nvoters = [1, 2, 3]\n',
            f'[s3]\nendpoint_url = "{self.endpoint.url}"\nregion = "{self.endpoint.region}"\nprofile = "{user}"\n',
            *(f'[[brokers]]\nid = {n}\nlog_dir = "{where}/b{n}"\n' for n in (1, 2, 3)),
        ]
        path = self.folder / f"{user}.toml"
        path.write_text("\n".join(lines))
        return path

    def driver(self, user: str) -> Cluster:
        return Cluster.open(self.file(user))

    def begin(self) -> OnS3:
        admin = Cluster.format(self.file("admin"))
        one = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
        admin.topics.alter_configs(None, one)
        admin.topics.create("t", partitions=1, replication_factor=3, configs=TIERED)
        admin.topics.create("u", partitions=1, replication_factor=3, configs={"retention.ms": "-1"})
        for value in "abc":
            append(admin, "t", value)
            append(admin, "u", value)
        admin.groups.commit("g", {("u", 0): 1})
        with admin.transactions.begin("x") as transaction:
            transaction.append_batches("u", {0: rows("d")})
        for _ in range(2):
            admin.tier().raise_for_failures()
            admin.retain().raise_for_failures()
        append(admin, "t", "d")
        admin.topics.create("other", partitions=1, replication_factor=3, configs=TIERED)
        append(admin, "other", "secret")
        admin.tier(["other"]).raise_for_failures()
        return self


def names_in(on_s3: OnS3) -> set[str]:
    """Every object of the cluster that is not a hint."""
    options = StoreOptions(on_s3.endpoint.url, on_s3.endpoint.region, profile="admin")
    root = open_store(f"s3://{on_s3.endpoint.bucket}/{PREFIX}", options)
    return {stored.name for stored in root.walk("") if not stored.name.endswith(".schedule")}


def append(cluster: Cluster, topic: str, value: str) -> Report:
    return cluster.append_batches(topic, {0: [batch([value])]}).raise_for_failures()


@pytest.fixture(scope="module")
def on_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnS3]:
    folder = tmp_path_factory.mktemp("rights")
    with pytest.MonkeyPatch.context() as patch, running_server(folder, USERS) as endpoint:
        for variable in (*credentials(), *OTHER_CREDENTIALS):
            patch.delenv(variable, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        users = {"admin": ACCESS_KEY} | {user: user for user in USERS}
        lines = [
            f"[{user}]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET_KEY}\n"
            for user, key in users.items()
        ]
        (folder / "credentials").write_text("\n".join(lines))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
        patch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
        s3_session._session.cache_clear()
        made = OnS3(folder, endpoint).begin()
        session = botocore.session.Session(profile="admin")
        path_style = botocore.config.Config(s3={"addressing_style": "path"})
        client = session.create_client(
            "s3", endpoint_url=endpoint.url, region_name=endpoint.region, config=path_style
        )
        policy = bucket_policy(made.driver("admin"), endpoint.bucket)
        client.put_bucket_policy(Bucket=endpoint.bucket, Policy=policy)
        yield made
    s3_session._session.cache_clear()


READS: Mapping[str, Callable[[Cluster], object]] = {
    "describe": lambda driver: driver.describe(TOPICS).raise_for_failures(),
    "health": lambda driver: driver.health(),
    "quorum.describe": lambda driver: driver.quorum.describe().raise_for_failures(),
    "fetch": lambda driver: driver.fetch("u", 0, 0),
    "fetch of tiered records": lambda driver: driver.fetch("t", 0, 0),
    "tail": lambda driver: next(iter(driver.tail("u", start=0))),
    "plan_read": lambda driver: driver.plan_read("t"),
    "offsets": lambda driver: driver.offsets("t", "2000-01-01T00:00:00Z"),
    "committed": lambda driver: driver.groups.committed("g"),
    "lag": lambda driver: driver.groups.lag("g").raise_for_failures(),
    "groups": lambda driver: driver.groups.list().raise_for_failures(),
    "brokers.list": lambda driver: driver.brokers.list().raise_for_failures(),
    "topics.list": lambda driver: driver.topics.list().raise_for_failures(),
    "discarded": lambda driver: driver.discarded(TOPICS).raise_for_failures(),
    "snapshots": lambda driver: driver.snapshots().raise_for_failures(),
    "metrics": lambda driver: driver.metrics().raise_for_failures(),
    "transactions": lambda driver: driver.transactions.list().raise_for_failures(),
    "reassignments": lambda driver: driver.reassignments().raise_for_failures(),
    "verify": lambda driver: driver.verify(TOPICS, deep=True).raise_for_failures(),
    "tier --dry-run": lambda driver: driver.tier(TOPICS, dry_run=True).raise_for_failures(),
    "retain --dry-run": lambda driver: driver.retain(TOPICS, dry_run=True).raise_for_failures(),
    "policy": lambda driver: driver.policy("reader", storage="aws"),
}
READS_OF_ALL: Mapping[str, Callable[[Cluster], object]] = {
    "drill": lambda driver: driver.drill().raise_for_failures(),
    "hanging": lambda driver: driver.transactions.find_hanging().raise_for_failures(),
    "verify of all": lambda driver: driver.verify(deep=True).raise_for_failures(),
    "health of all": lambda driver: driver.health().raise_for_failures(),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("user", ROLES)
def test_every_role_reads_its_topics(on_s3: OnS3, user: str) -> None:
    driver = on_s3.driver(user)
    for read in READS.values():
        read(driver)


@pytest.mark.sample(1)
@pytest.mark.parametrize("user", [user for user, (_, topics) in ROLES.items() if topics is None])
def test_a_role_of_all_topics_reads_everything(on_s3: OnS3, user: str) -> None:
    driver = on_s3.driver(user)
    for read in READS_OF_ALL.values():
        read(driver)


@pytest.mark.parametrize("user", ["reader", "producer", "operator"])
def test_records_of_another_topic_affect_no_other_topic(on_s3: OnS3, user: str) -> None:
    """Those records are in both tiers; they are neither written nor deleted."""
    driver = on_s3.driver(user)
    refused = [
        texts_of(lambda: driver.fetch("other", 0, 0)),
        texts_of(lambda: driver.verify(["other"], deep=True)),
        texts_of(lambda: driver.append_batches("other", {0: [batch(["x"])]}, check=False)),
        texts_of(lambda: driver.describe(["other"])),
    ]
    for message in refused:
        assert "CLUSTER_AUTHORIZATION_FAILED: " in message
        assert re.search(rf"cannot .*s3://{on_s3.endpoint.bucket}/{PREFIX}/(b\d/.*/|remote/)other-", message), (
            message
        )
    assert on_s3.driver("admin").fetch("other", 0, 0).records.num_rows


def texts_of(act: Callable[[], object]) -> str:
    """The texts about the user's refused requests."""
    try:
        answer = act()
    except StratalogError as error:
        return f"{error.code}: {error}"
    assert isinstance(answer, Report), answer
    assert not answer.ok
    return "\n".join(f"{failure.code}: {failure.message}" for failure in answer.failures)


def test_a_reader_that_writes_learns_what_it_lacks_and_where(on_s3: OnS3) -> None:
    driver = on_s3.driver("reader")
    writes: Mapping[str, Callable[[], object]] = {
        "__cluster_metadata/": lambda: driver.topics.create("n"),
        "/u-": lambda: driver.append_batches("u", {0: [batch(["x"])]}, check=False),
        "/__consumer_offsets-": lambda: driver.groups.commit("g", {("u", 0): 2}),
        "/__consumer_offsets-.*/": lambda: driver.groups.delete("g"),
        "remote/": lambda: driver.tier(check=False),
        "__cluster_metadata/.*claim": lambda: driver.quorum.remove_voter(3),
    }
    before = names_in(on_s3)
    for path, write in writes.items():
        found = texts_of(write)
        assert "CLUSTER_AUTHORIZATION_FAILED: " in found, path
        assert re.search(rf"cannot .*s3://{on_s3.endpoint.bucket}/{PREFIX}.*{path}.*\(s3:PutObject\)", found), (
            found
        )
    assert names_in(on_s3) == before


@pytest.mark.parametrize("user", ["producer", "appendsall"])
def test_a_producer_does_its_work_and_deletes_nothing(on_s3: OnS3, user: str) -> None:
    driver = on_s3.driver(user)
    for value in "ef":
        append(driver, "t", value)
        append(driver, "u", value)
    driver.groups.commit("g", {("u", 0): 2}).raise_for_failures()
    with driver.transactions.begin("y") as transaction:
        transaction.append_batches("u", {0: rows("g")})
    driver.groups.reset_offsets("g", "u", to=0).raise_for_failures()
    driver.transactions.finish().raise_for_failures()
    before = names_in(on_s3)
    for work in (
        lambda: driver.retain(TOPICS, check=False),
        driver.vacuum,
        lambda: driver.topics.delete("t", check=False),
    ):
        found = texts_of(work)
        assert "CLUSTER_AUTHORIZATION_FAILED: " in found
        assert re.search(r"\(s3:(Delete|Put)Object\)|its owner must grant you the right to create", found), found
    assert before <= names_in(on_s3)
    assert "t" in on_s3.driver("admin").image.topic_ids


def test_an_append_succeeds_without_the_right_to_delete_and_leaves_hidden_files_to_the_operator(
    on_s3: OnS3,
) -> None:
    """The driver merges after its appends, and tries to delete the hidden files."""
    configs = {"segment.merge.min.files": "2", "file.delete.delay.ms": "0", "retention.ms": "-1"}
    admin = on_s3.driver("admin")
    admin.topics.alter_configs("u", configs)
    driver = Cluster.open(on_s3.file("producer"))
    for value in "hijklm":
        append(driver, "u", value)
    assert driver.fetch("u", 0, 0).records.num_rows
    operator = on_s3.driver("operator")
    assert operator.retain(["u"]).raise_for_failures().totals["deleted_files"]


def test_an_operator_keeps_its_topics_up(on_s3: OnS3) -> None:
    driver = on_s3.driver("operator")
    append(on_s3.driver("producer"), "t", "n")
    for work in (driver.replicate, driver.merge, driver.heal, driver.tier, driver.retain):
        work(TOPICS).raise_for_failures()  # type: ignore[operator]
    driver.topics.alter_configs("t", {"retention.ms": "-1"})
    driver.topics.delete_records("t", {0: 1}).raise_for_failures()
    driver.quorum.snapshot().raise_for_failures()
    driver.verify(TOPICS, deep=True).raise_for_failures()
    for work in (driver.retain, driver.tier):
        assert "/other-" in texts_of(lambda work=work: work(["other"]))  # type: ignore[misc]


def test_the_operator_of_all_topics_does_everything(on_s3: OnS3) -> None:
    driver = on_s3.driver("chief")
    driver.topics.create("made", partitions=1, replication_factor=3)
    append(driver, "made", "x")
    driver.maintain().raise_for_failures()
    for work in (driver.retain, driver.vacuum, driver.verify, driver.health):
        work().raise_for_failures()
    driver.topics.delete("made").raise_for_failures()
    driver.groups.delete("g").raise_for_failures()
    driver.verify(deep=True).raise_for_failures()
    assert "made" not in driver.image.topic_ids


def test_a_root_is_formatted_by_a_caller_who_may_not_delete(on_s3: OnS3, caplog: pytest.LogCaptureFixture) -> None:
    options = StoreOptions(on_s3.endpoint.url, on_s3.endpoint.region, profile="nodelete")
    root = open_store(f"s3://{on_s3.endpoint.bucket}/{PREFIX}/new", options)
    root.check()
    assert "probes remain in" in caplog.text
    root.check()


def test_without_any_right_the_first_missing_right_is_named(on_s3: OnS3) -> None:
    with pytest.raises(StorageAuthorizationError, match=r"broker\.json: 403 AccessDenied.*s3:GetObject"):
        on_s3.driver("nobody")
