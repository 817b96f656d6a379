"""Hadoop's settings for the buckets of stratalog's stores. Spark reads Parquet and Delta through Hadoop's file
systems.

Resolved options contain the endpoint of a bucket, so Hadoop does not look up the endpoint. No setting contains a
secret: S3A and Google's connector find credentials in the environment, the profile or the machine; Azure's setting
names the environment variable that holds its key. A credentials provider is Python code, which Hadoop cannot call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.jobs.jars import jar_folder
from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.resolving import CONNECTION_STRING, resolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROFILE_PROVIDER = "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"
_SDK_PROFILE_PROVIDER = "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider"
_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    _PROFILE_PROVIDER,
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
)
"""S3A's default providers, plus a provider for profiles, in the same position as in the AWS SDK. S3A's own list
has no provider for profiles, and Hadoop 3.4.1 (Spark 4.0) has no such provider at all. The SDK's provider reads
only ``AWS_PROFILE``, which executors may lack.
"""
_AZURE = "org.apache.hadoop.fs.azurebfs"
_AZURE_KEY = "AZURE_STORAGE_ACCOUNT_KEY"
_PRINT_KEY_OF_STRING = f"printenv {CONNECTION_STRING} | tr ';' '\\n' | sed -n 's/^AccountKey=//p'"
_NO_KEY = "environment="
"""Hadoop requires some base64 text as the key, and passes it to the command as ``$0``."""
_GOOGLE = {
    "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
    # Hadoop's connector has defaults with units for these names, and Google's connector cannot parse units.
    "fs.gs.block.size": "67108864",
    "fs.gs.inputstream.inplace.seek.limit": "8388608",
    "fs.gs.inputstream.min.range.request.size": "2097152",
    "fs.gs.outputstream.buffer.size": "8388608",
    "fs.gs.rewrite.max.chunk.size": "536870912",
}


def reach_stores(spark: SparkSession, roots: Mapping[str, StoreOptions]) -> None:
    """Let ``spark`` read the buckets among the addresses ``roots``, with the same options as ``open_store``. Each
    bucket of S3 has its own options. For ``abfss://`` and ``gs://`` this needs stratalog's jars in the session
    (``stratalog.jobs.jars``); otherwise the platform's settings apply. Hadoop has no ``az://``.

    Raises: UnsupportedStoreError; see ``resolved``.

    A bucket that this JVM has already opened keeps its earlier options, because Hadoop caches file systems.
    """
    here = {name for name in ("azure", "gcs") if any(Path(jar_folder(), name).glob("*.jar"))}
    for address, given in roots.items():
        options = resolved(address, given)
        scheme, _, rest = address.partition("://")
        bucket = rest.partition("/")[0]
        settings: Mapping[str, str] = {}
        if scheme == "s3":
            settings = s3a_settings(bucket, options, os.environ, spark.version)
        elif scheme == "abfss" and "azure" in here:
            settings = abfs_settings(bucket.rpartition("@")[2], options, os.environ)
        elif scheme == "gs" and "gcs" in here:
            settings = gcs_settings(options, os.environ)
        for key, value in settings.items():
            spark.conf.set(key, value)


def s3a_settings(
    bucket: str, options: StoreOptions, environ: Mapping[str, str], spark_version: str
) -> dict[str, str]:
    """Return resolved ``options`` as Hadoop's S3A keys for a bucket, without Spark's prefix ``spark.hadoop.``.

    A custom endpoint gets path-style addresses, because its buckets have no host names. Keys in the environment
    take precedence over a profile that the environment names.

    Raises: UnsupportedStoreError on Spark 4.0 for a profile that ``AWS_PROFILE`` does not name.
    """
    settings: dict[str, str] = {}
    if options.endpoint_url is not None:
        settings["endpoint"] = options.endpoint_url
        settings["path.style.access"] = "true"
    if options.region is not None:
        settings["endpoint.region"] = options.region
    profile = options.profile
    providers: tuple[str, ...] = (_PROFILE_PROVIDER,)
    if profile is None and options.credentials is None:
        profile = environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE")
        providers = _PROVIDERS
    if profile and spark_version.startswith("4.0."):
        if profile != environ.get("AWS_PROFILE"):
            raise UnsupportedStoreError(
                f"bucket {bucket}: Spark 4.0 finds the profile {profile!r} only in the variable AWS_PROFILE: set "
                "it where Spark runs, or use Spark 4.1 or later"
            )
        providers = tuple(_SDK_PROFILE_PROVIDER if each == _PROFILE_PROVIDER else each for each in providers)
    if profile:
        settings["aws.credentials.provider"] = ",".join(providers)
        settings["auth.profile.name"] = profile
    return {f"fs.s3a.bucket.{bucket}.{key}": value for key, value in settings.items()}


def abfs_settings(host: str, options: StoreOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return resolved ``options`` as Hadoop's keys for an account. ``host`` is ``account.dfs.core.windows.net``.
    The key of the account stays in the environment of the JVM; a command prints the key when Hadoop needs it.
    Identities use Hadoop's own settings (``fs.azure.account.auth.type``).
    """
    # Hadoop's threads for these metrics are not daemons, so a JVM of spark-submit would never end.
    settings = {"fs.azure.metrics.collection.enabled": "false"}
    command = None
    if "AccountKey=" in environ.get(CONNECTION_STRING, ""):
        command = _PRINT_KEY_OF_STRING
    elif environ.get(_AZURE_KEY):
        command = f"printenv {_AZURE_KEY}"
    if command is not None:
        settings[f"fs.azure.account.keyprovider.{host}"] = f"{_AZURE}.services.ShellDecryptionKeyProvider"
        settings[f"fs.azure.account.key.{host}"] = _NO_KEY
        # separated by spaces
        settings["fs.azure.shellkeyprovider.script"] = "sh -c " + command.replace(" ", "${IFS}")
    scheme, _, server = (options.endpoint_url or "").partition("://")
    # a self-hosted server, which supports both APIs
    if server not in {"", host, host.replace(".dfs.", ".blob.", 1)}:
        settings["fs.abfss.impl"] = f"{_AZURE}.AzureBlobFileSystem"
        settings["fs.azure.abfs.endpoint"] = server.partition("/")[0]
        settings["fs.azure.account.hns.enabled"] = "false"
        settings["fs.azure.always.use.https"] = "true" if scheme == "https" else "false"
        settings["fs.azure.fns.account.service.type"] = "BLOB"
        settings["fs.azure.networking.library"] = "JDK_HTTP_URL_CONNECTION"
    return settings


def gcs_settings(options: StoreOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return resolved ``options`` as the keys of Google's connector. These keys apply to all buckets, because the
    connector has no settings per bucket."""
    settings = dict(_GOOGLE)
    endpoint = options.endpoint_url or ""
    if endpoint:
        settings["fs.gs.storage.root.url"] = f"{endpoint.rstrip('/')}/"
    if endpoint.startswith("http://"):  # without TLS, others could read the credentials
        settings["fs.gs.auth.null.enable"] = "true"
        settings["fs.gs.auth.service.account.enable"] = "false"
    elif environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        settings["fs.gs.auth.service.account.json.keyfile"] = environ["GOOGLE_APPLICATION_CREDENTIALS"]
    return settings
