"""Rights on a real S3 server, which gives users those of the policies in SECURITY.md and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from stratalog.engine.cluster import Cluster
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import StorageAuthorizationError, StratalogError
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.tiering import delta_options
from tests.unit.cluster_harness import TIERED
from tests.unit.harness import batch
from tests.unit.transact_harness import rows

pytestmark = pytest.mark.s3

PREFIX = "stratalog"
USERS = ("reader", "producer", "nobody")


def policies() -> tuple[list[dict[str, Any]], list[str]]:
    """Of the document: the statements of a reader, and what a producer may do besides."""
    document = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    (reader,) = re.findall(r"```json\n(.*?)```", document, re.DOTALL)
    found = re.search(r"A producer has these, and `(.*?)` on", document, re.DOTALL)
    assert found is not None
    return json.loads(reader)["Statement"], re.findall(r'"(s3:\w+)"', found[1])


def bucket_policy(bucket: str) -> str:
    """The document's policies, for the users of the server."""
    reader, more = policies()
    objects = f"arn:aws:s3:::BUCKET/{PREFIX}/*"
    producer = [*reader, {"Effect": "Allow", "Action": more, "Resource": objects}]
    statements = [
        {**statement, "Principal": {"AWS": principal(user)}}
        for user, given in (("reader", reader), ("producer", producer))
        for statement in given
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}).replace("BUCKET", bucket)


@dataclass
class OnS3:
    """A cluster of three voters on one bucket, with something tiered; drivers of its users."""

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
        return self


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
        delta_options._session.cache_clear()
        session = botocore.session.Session(profile="admin")
        path_style = botocore.config.Config(s3={"addressing_style": "path"})
        client = session.create_client(
            "s3", endpoint_url=endpoint.url, region_name=endpoint.region, config=path_style
        )
        client.put_bucket_policy(Bucket=endpoint.bucket, Policy=bucket_policy(endpoint.bucket))
        yield OnS3(folder, endpoint).begin()
    delta_options._session.cache_clear()


READS: Mapping[str, Callable[[Cluster], object]] = {
    "describe": lambda driver: driver.describe().raise_for_failures(),
    "quorum.describe": lambda driver: driver.quorum.describe().raise_for_failures(),
    "fetch": lambda driver: driver.fetch("u", 0, 0),
    "fetch of tiered records": lambda driver: driver.fetch("t", 0, 0),
    "tail": lambda driver: next(iter(driver.tail("u", start=0))),
    "plan_read": lambda driver: driver.plan_read("t"),
    "committed": lambda driver: driver.groups.committed("g"),
    "lag": lambda driver: driver.groups.lag("g").raise_for_failures(),
    "groups": lambda driver: driver.groups.list().raise_for_failures(),
    "brokers.list": lambda driver: driver.brokers.list().raise_for_failures(),
    "discarded": lambda driver: driver.discarded().raise_for_failures(),
    "snapshots": lambda driver: driver.snapshots().raise_for_failures(),
    "metrics": lambda driver: driver.metrics().raise_for_failures(),
    "transactions": lambda driver: driver.transactions.list().raise_for_failures(),
    "hanging_transactions": lambda driver: driver.transactions.hanging().raise_for_failures(),
    "reassignments": lambda driver: driver.reassignments().raise_for_failures(),
    "verify": lambda driver: driver.verify(deep=True).raise_for_failures(),
    "drill": lambda driver: driver.drill().raise_for_failures(),
    "tier --dry-run": lambda driver: driver.tier(dry_run=True).raise_for_failures(),
    "retain --dry-run": lambda driver: driver.retain(dry_run=True).raise_for_failures(),
}


def test_a_reader_reads_everything(on_s3: OnS3) -> None:
    driver = on_s3.driver("reader")
    for read in READS.values():
        read(driver)


def said_by(act: Callable[[], object]) -> str:
    """What it says of what it was refused."""
    try:
        answer = act()
    except StratalogError as error:
        return f"{error.code}: {error}"
    assert isinstance(answer, Report), answer
    assert not answer.ok
    return "\n".join(f"{failure.code}: {failure.message}" for failure in answer.failures)


def test_a_reader_that_writes_is_told_what_it_lacks_and_where(on_s3: OnS3) -> None:
    driver = on_s3.driver("reader")
    writes: Mapping[str, Callable[[], object]] = {
        "__cluster_metadata/": lambda: driver.topics.create("n"),
        "/u-": lambda: driver.append_batches("u", {0: [batch(["x"])]}),
        "/__consumer_offsets-": lambda: driver.groups.commit("g", {("u", 0): 2}),
        "/__consumer_offsets-.*/": lambda: driver.groups.delete("g"),
        "remote/": lambda: driver.tier(),
        "__cluster_metadata/.*claim": lambda: driver.quorum.remove_voter(3),
    }
    for path, write in writes.items():
        said = said_by(write)
        assert "CLUSTER_AUTHORIZATION_FAILED: " in said, path
        assert re.search(rf"cannot .*s3://{on_s3.endpoint.bucket}/{PREFIX}.*{path}.*\(s3:PutObject\)", said), said


def test_a_producer_does_its_work_and_deletes_nothing(on_s3: OnS3) -> None:
    driver = on_s3.driver("producer")
    for value in "ef":
        append(driver, "t", value)
        append(driver, "u", value)
    driver.groups.commit("g", {("u", 0): 2}).raise_for_failures()
    with driver.transactions.begin("y") as transaction:
        transaction.append_batches("u", {0: rows("g")})
    driver.topics.create("made", partitions=1, replication_factor=3)
    driver.groups.reset_offsets("g", "u", to=0).raise_for_failures()
    driver.groups.delete("g").raise_for_failures()
    driver.transactions.finish().raise_for_failures()
    for work in (driver.replicate, driver.merge, driver.tier, driver.heal):
        work().raise_for_failures()
    for work in (driver.retain, driver.vacuum):
        report = work()
        assert {failure.code for failure in report.failures} == {"CLUSTER_AUTHORIZATION_FAILED"}, report
        assert all("(s3:DeleteObject)" in failure.message for failure in report.failures)
    admin = on_s3.driver("admin")
    for work in (admin.retain, admin.vacuum):
        work().raise_for_failures()
    admin.verify(deep=True).raise_for_failures()


def test_a_root_is_formatted_by_who_may_not_delete(on_s3: OnS3, caplog: pytest.LogCaptureFixture) -> None:
    options = StoreOptions(on_s3.endpoint.url, on_s3.endpoint.region, profile="producer")
    root = open_store(f"s3://{on_s3.endpoint.bucket}/{PREFIX}/new", options)
    root.check()
    assert "probes stay in" in caplog.text
    root.check()


def test_to_whom_nothing_is_allowed_the_first_right_is_named(on_s3: OnS3) -> None:
    with pytest.raises(StorageAuthorizationError, match=r"broker\.json: 403 AccessDenied.*s3:GetObject"):
        on_s3.driver("nobody")
