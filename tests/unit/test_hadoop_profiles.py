"""Hadoop's settings for an AWS profile: Spark reads a bucket with the credentials of the brokers' clients."""

from __future__ import annotations

import pytest

from stratalog.jobs.hadoop import s3a_settings
from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store import StoreOptions


@pytest.mark.parametrize(
    ("spark_version", "provider"),
    [("4.0.1", "ProfileCredentialsProvider"), ("4.1.4", "ProfileAWSCredentialsProvider")],
)
def test_a_profile_that_the_environment_names_comes_after_its_keys_in_spark_too(
    spark_version: str, provider: str
) -> None:
    found = s3a_settings("b", StoreOptions(), {"AWS_PROFILE": "lake"}, spark_version)
    assert found["fs.s3a.bucket.b.auth.profile.name"] == "lake"
    providers = [name.rpartition(".")[2] for name in found["fs.s3a.bucket.b.aws.credentials.provider"].split(",")]
    assert providers[-3:] == [
        "EnvironmentVariableCredentialsProvider",
        provider,
        "IAMInstanceCredentialsProvider",
    ]


@pytest.mark.parametrize(
    ("options", "environ"),
    [(StoreOptions(profile="lake"), {}), (StoreOptions(), {"AWS_DEFAULT_PROFILE": "lake"})],
    ids=["file", "AWS_DEFAULT_PROFILE"],
)
def test_spark_4_0_refuses_a_profile_that_it_cannot_find(options: StoreOptions, environ: dict[str, str]) -> None:
    """Hadoop 3.4.1 would read with other credentials, or find no class in the middle of a query."""
    with pytest.raises(UnsupportedStoreError, match=r"Spark 4.0 finds the profile 'lake' only in .*AWS_PROFILE"):
        s3a_settings("b", options, environ, "4.0.1")
    found = s3a_settings("b", options, {**environ, "AWS_PROFILE": "lake"}, "4.0.1")
    assert "ProfileCredentialsProvider" in found["fs.s3a.bucket.b.aws.credentials.provider"]
