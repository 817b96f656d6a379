"""Storage policies: the allowed requests per object, as each storage would judge them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from stratalog.bridges.jobs.policy import main as job
from stratalog.bridges.policy.aws import aws_policy
from stratalog.bridges.policy.azure import azure_policy
from stratalog.bridges.policy.gcs import MOST_OPERANDS, gcs_policy
from stratalog.bridges.policy.layout import ClusterLayout, StorageRoot
from stratalog.bridges.policy.role import Role
from stratalog.bridges.policy.statements import statements
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidTopicError,
    Right,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.store.protocol import StoreOptions
from tests.unit.cluster_harness import LiveCluster

T, U, OFFSETS = (f"{number:032x}" for number in (1, 2, 3))
INCARNATION, VOTER = f"{9:032x}.abcdef01", f"{9:032x}"
AMAZON = StoreOptions()
SCHEMES = {"aws": "s3://bucket", "azure": "abfss://box@account.dfs.core.windows.net", "gcs": "gs://bucket"}


def layout(scheme: str, topics: Iterable[str] | None, options: StoreOptions = AMAZON) -> ClusterLayout:
    """Two brokers, of which the first votes, and a remote tier in one bucket."""
    ids = {"t": T, "u": U}
    return ClusterLayout(
        "c",
        (
            StorageRoot(f"{scheme}/b1", options, INCARNATION, VOTER),
            StorageRoot(f"{scheme}/b2", options, INCARNATION),
        ),
        StorageRoot(f"{scheme}/remote", options),
        None if topics is None else {name: ids[name] for name in topics},
        {"__consumer_offsets": OFFSETS},
    )


KEYS: dict[str, str] = {
    "records of t": f"b1/{INCARNATION}/t-{T}/0.16/{0:020d}.0000000001.parquet",
    "records of u": f"b1/{INCARNATION}/u-{U}/0.16/{0:020d}.0000000001.parquet",
    "like t": f"b1/{INCARNATION}/t-{U}/0.16/{0:020d}.0000000001.parquet",
    "groups": f"b2/{INCARNATION}/__consumer_offsets-{OFFSETS}/0.3/{0:020d}.0000000001.parquet",
    "metadata": f"b1/{VOTER}/__cluster_metadata/0000000001.claim",
    "hints": f"b2/{INCARNATION}/__remote_log_manager/{0:020d}.schedule",
    "broker.json": "b1/broker.json",
    "staged": "b2/.staging/x",
    "remote t": f"remote/t-{T}/0/x.parquet",
    "log of remote t": f"remote/t-{T}/_delta_log/{0:020d}.json",
    "remote u": f"remote/u-{U}/0/x.parquet",
    "description": "remote/_clusters/c/x.json",
    "of somebody else": "other/x",
}
READS = {
    *("records of t", "groups", "metadata", "hints", "broker.json"),
    *("remote t", "log of remote t", "description"),
}
APPENDS = {"records of t", "groups", "metadata", "staged"}
KEEPS_UP = {*APPENDS, "hints", "remote t", "log of remote t", "description"}
ALL = set(KEYS) - {"of somebody else"}
MAY: dict[tuple[Role, bool], dict[str, set[str]]] = {
    (Role.READER, False): {"read": READS, "create": set(), "delete": set()},
    (Role.PRODUCER, False): {"read": {*READS, "staged"}, "create": APPENDS, "delete": set()},
    (Role.OPERATOR, False): {"read": {*READS, "staged"}, "create": KEEPS_UP, "delete": KEEPS_UP},
    (Role.READER, True): {"read": ALL, "create": set(), "delete": set()},
    (Role.PRODUCER, True): {
        "read": ALL,
        "create": {*APPENDS, "records of u", "like t", "hints"},
        "delete": set(),
    },
    (Role.OPERATOR, True): {"read": ALL, "create": ALL, "delete": ALL},
}
"""The objects that may be read, created and deleted, by role, and by whether the policy is for all topics or for
``t``."""


def by_aws(text: str) -> Callable[[str, Right], bool]:
    actions = {"read": "s3:GetObject", "create": "s3:PutObject", "delete": "s3:DeleteObject"}
    given = json.loads(text)["Statement"]
    return lambda key, right: any(
        actions[right] in each["Action"]
        and any(fnmatchcase(f"arn:aws:s3:::bucket/{key}", one) for one in each["Resource"])
        for each in given
    )


def by_azure(text: str) -> Callable[[str, Right], bool]:
    document = json.loads(text)
    (assignment,) = document["assignments"]
    assert (assignment["account"], assignment["container"]) == ("account", "box")

    def may(key: str, right: Right) -> bool:
        action = {"read": "/blobs/read", "create": "/blobs/write", "delete": "/blobs/delete"}[right]
        if not any(one.endswith(action) for one in document["roleDefinition"]["DataActions"]):
            return False
        for clause in assignment["condition"].split(") AND ("):
            if f"{action}'" in clause:
                return any(fnmatchcase(key, one) for one in re.findall(r"StringLike '([^']*)'", clause))
        raise AssertionError(f"nothing is said of {action}")

    return may


def by_gcs(text: str) -> Callable[[str, Right], bool]:
    roles = {
        "read": {"roles/storage.objectViewer", "roles/storage.objectUser"},
        "create": {"roles/storage.objectCreator", "roles/storage.objectUser"},
        "delete": {"roles/storage.objectUser"},
    }
    (bindings,) = (one["bindings"] for one in json.loads(text).values())

    def holds(binding: Any, key: str) -> bool:
        tests = binding["condition"]["expression"].split(" || ")
        assert len(tests) <= MOST_OPERANDS
        name = f"projects/_/buckets/bucket/objects/{key}"
        return any(
            name == test[1:-1] if equal else name.startswith(test[1:-1])
            for equal, test in (
                (one.startswith("resource.name == "), re.search(r'".*"', one)[0])
                for one in tests  # type: ignore[index]
            )
        )

    return lambda key, right: any(
        binding["role"] in roles[right] and "condition" in binding and holds(binding, key) for binding in bindings
    )


PRINT: dict[str, Callable[[Role, ClusterLayout], str]] = {
    "aws": lambda role, of: aws_policy(statements(role, of)),
    "azure": lambda role, of: azure_policy(role, of.cluster_id, statements(role, of)),
    "gcs": lambda role, of: gcs_policy(statements(role, of)),
}
JUDGE = {"aws": by_aws, "azure": by_azure, "gcs": by_gcs}


@pytest.mark.parametrize("storage", SCHEMES)
@pytest.mark.parametrize(("role", "of_all"), MAY)
def test_each_role_may_do_its_work_and_nothing_else(storage: str, role: Role, of_all: bool) -> None:
    of = layout(SCHEMES[storage], None if of_all else ["t"])
    may = JUDGE[storage](PRINT[storage](role, of))
    rights: tuple[Right, ...] = ("read", "create", "delete")
    found = {right: {name for name, key in KEYS.items() if may(key, right)} for right in rights}
    assert found == MAY[role, of_all]


def test_on_amazon_who_may_not_delete_may_not_overwrite() -> None:
    """Every request that names an object must have If-None-Match; on servers without that condition, and for
    operators, there is none."""

    def conditions(role: Role, options: StoreOptions) -> list[object]:
        text = aws_policy(statements(role, layout("s3://bucket", ["t"], options)))
        return [
            each.get("Condition") for each in json.loads(text)["Statement"] if "s3:PutObject" in each["Action"]
        ]

    exclusive = {"Null": {"s3:if-none-match": "false"}}
    parts = {"Bool": {"s3:ObjectCreationOperation": "false"}}
    assert conditions(Role.PRODUCER, AMAZON) == [exclusive, parts] * 3
    assert conditions(Role.PRODUCER, StoreOptions("https://minio.example.org")) == [None] * 3
    assert conditions(Role.OPERATOR, AMAZON) == [None] * 5


def test_a_key_of_a_bucket_may_be_used() -> None:
    arn = "arn:aws:kms:eu-central-1:111122223333:key/1234"
    for key, resource in (
        (arn, arn),
        ("1234", "arn:aws:kms:*:*:key/1234"),
        ("alias/logs", "arn:aws:kms:*:*:key/*"),
    ):
        for role, actions in (
            (Role.READER, ["kms:Decrypt"]),
            (Role.PRODUCER, ["kms:Decrypt", "kms:GenerateDataKey"]),
        ):
            text = aws_policy(statements(role, layout("s3://bucket", ["t"], StoreOptions(kms_key_id=key))))
            last = json.loads(text)["Statement"][-1]
            assert (last["Action"], last["Resource"]) == (actions, [resource])
            assert ("Condition" in last) == key.startswith("alias/")


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    return live


def test_impossible_requests_are_refused(live: LiveCluster) -> None:
    policy = live.cluster.policy
    for error, message, ask in (
        (
            InvalidCallError,
            "role 'boss': use one of reader, producer, operator",
            lambda: policy("boss", storage="aws"),
        ),
        (InvalidCallError, "posix, not a scheme: aws", lambda: policy("reader", storage="s3")),
        (InvalidCallError, "storage 'dos'", lambda: policy("reader", storage="dos")),
        (
            InvalidCallError,
            "no root of the cluster is on aws: they are on posix",
            lambda: policy("reader", storage="aws"),
        ),
        (UnknownTopicOrPartitionError, "'x'", lambda: policy("reader", ["x"], storage="posix")),
        (InvalidTopicError, "internal", lambda: policy("reader", "__consumer_offsets", storage="posix")),
    ):
        with pytest.raises(error, match=message):
            ask()


@pytest.mark.parametrize(("scheme", "kind"), [("s3", "aws"), ("abfss", "azure"), ("gs", "gcs"), ("file", "posix")])
def test_a_scheme_is_refused_with_the_kind_of_storage(
    scheme: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job(["--role", "reader", "--for", scheme]) == 2
    assert f"'{scheme}' is the scheme of an address: use {kind}" in capsys.readouterr().err


def test_the_job_prints_the_policy_and_nothing_else(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--cluster", str(live.file), "--role", "producer", "--topics", "t", "--for", "posix"]
    with live.unchanged():
        assert job(given) == 0
    printed = capsys.readouterr().out
    assert printed == live.cluster.policy("producer", "t", storage="posix")
    assert printed.startswith("#!/bin/sh\n")
