"""How Hadoop's file systems, by which Spark reads Parquet and Delta, reach the buckets that stores do.

Resolved options say where a bucket is, and Hadoop looks for no address. No secret is put in a setting: S3A and
Google's connector find credentials in the environment, the profile or the machine; Azure's is told the name of the
variable that its key stands in. A provider of credentials is of Python, and Hadoop has none of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.jobs.jars import jar_folder
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.resolving import CONNECTION_STRING, resolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROFILE_PROVIDER = "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"
_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    _PROFILE_PROVIDER,
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
)
"""S3A's own order, with a profile where the AWS SDK has it: S3A knows none by itself."""
_AZURE = "org.apache.hadoop.fs.azurebfs"
_AZURE_KEY = "AZURE_STORAGE_ACCOUNT_KEY"
_PRINT_KEY_OF_STRING = f"printenv {CONNECTION_STRING} | tr ';' '\\n' | sed -n 's/^AccountKey=//p'"
_NO_KEY = "environment="
"""Hadoop insists on something in base64 in the place of the key, and hands it to the command: as ``$0``."""
_GOOGLE = {
    "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
    # Hadoop has defaults of its own connector for these names, with units, which Google's takes for no numbers.
    "fs.gs.block.size": "67108864",
    "fs.gs.inputstream.inplace.seek.limit": "8388608",
    "fs.gs.inputstream.min.range.request.size": "2097152",
    "fs.gs.outputstream.buffer.size": "8388608",
    "fs.gs.rewrite.max.chunk.size": "536870912",
}


def reach_stores(spark: SparkSession, roots: Mapping[str, StoreOptions]) -> None:
    """Let ``spark`` read the buckets among the addresses ``roots`` the way ``open_store`` does with their options:
    those of S3 each in its own way; those of ``abfss://`` and ``gs://`` where the jars of stratalog are in the
    session (``stratalog.jobs.jars``), else it is the platform's to say. Hadoop has no ``az://``.

    Raises: UnsupportedStoreError, as ``resolved``.

    A bucket that this JVM has opened before keeps the options it was opened with (Hadoop's cache of
    file systems).
    """
    here = {name for name in ("azure", "gcs") if any(Path(jar_folder(), name).glob("*.jar"))}
    for address, given in roots.items():
        options = resolved(address, given)
        scheme, _, rest = address.partition("://")
        bucket = rest.partition("/")[0]
        settings: Mapping[str, str] = {}
        if scheme == "s3":
            settings = s3a_settings(bucket, options, os.environ)
        elif scheme == "abfss" and "azure" in here:
            settings = abfs_settings(bucket.rpartition("@")[2], options, os.environ)
        elif scheme == "gs" and "gcs" in here:
            settings = gcs_settings(options, os.environ)
        for key, value in settings.items():
            spark.conf.set(key, value)


def s3a_settings(bucket: str, options: StoreOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Resolved ``options`` as Hadoop's S3A keys for a bucket, without Spark's prefix ``spark.hadoop.``.

    An endpoint of one's own gets path-style addresses (its buckets have no host names). A profile that the
    environment names comes after its keys.
    """
    settings: dict[str, str] = {}
    if options.endpoint_url is not None:
        settings["endpoint"] = options.endpoint_url
        settings["path.style.access"] = "true"
    if options.region is not None:
        settings["endpoint.region"] = options.region
    profile = environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE")
    if options.profile is not None:
        settings["aws.credentials.provider"] = _PROFILE_PROVIDER
        settings["auth.profile.name"] = options.profile
    elif profile and options.credentials is None:
        settings["aws.credentials.provider"] = ",".join(_PROVIDERS)
        settings["auth.profile.name"] = profile
    return {f"fs.s3a.bucket.{bucket}.{key}": value for key, value in settings.items()}


def abfs_settings(host: str, options: StoreOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Resolved ``options`` as Hadoop's keys for an account, ``host`` being ``account.dfs.core.windows.net``.

    The key of the account stays in the environment of the JVM: it is printed from there when it is needed.
    Identities take settings of Hadoop's own (``fs.azure.account.auth.type``).
    """
    # Hadoop's threads for these metrics are no daemons: a JVM of spark-submit would never end.
    settings = {"fs.azure.metrics.collection.enabled": "false"}
    command = None
    if "AccountKey=" in environ.get(CONNECTION_STRING, ""):
        command = _PRINT_KEY_OF_STRING
    elif environ.get(_AZURE_KEY):
        command = f"printenv {_AZURE_KEY}"
    if command is not None:
        settings[f"fs.azure.account.keyprovider.{host}"] = f"{_AZURE}.services.ShellDecryptionKeyProvider"
        settings[f"fs.azure.account.key.{host}"] = _NO_KEY
        settings["fs.azure.shellkeyprovider.script"] = "sh -c " + command.replace(" ", "${IFS}")  # apart by spaces
    scheme, _, server = (options.endpoint_url or "").partition("://")
    if server not in {"", host, host.replace(".dfs.", ".blob.", 1)}:  # one's own, which speaks as blobs do
        settings["fs.abfss.impl"] = f"{_AZURE}.AzureBlobFileSystem"
        settings["fs.azure.abfs.endpoint"] = server.partition("/")[0]
        settings["fs.azure.account.hns.enabled"] = "false"
        settings["fs.azure.always.use.https"] = "true" if scheme == "https" else "false"
        settings["fs.azure.fns.account.service.type"] = "BLOB"
        settings["fs.azure.networking.library"] = "JDK_HTTP_URL_CONNECTION"
    return settings


def gcs_settings(options: StoreOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Resolved ``options`` as the keys of Google's connector: of all buckets, for it has none of one."""
    settings = dict(_GOOGLE)
    endpoint = options.endpoint_url or ""
    if endpoint:
        settings["fs.gs.storage.root.url"] = f"{endpoint.rstrip('/')}/"
    if endpoint.startswith("http://"):  # where credentials could be read on the way
        settings["fs.gs.auth.null.enable"] = "true"
        settings["fs.gs.auth.service.account.enable"] = "false"
    elif environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        settings["fs.gs.auth.service.account.json.keyfile"] = environ["GOOGLE_APPLICATION_CREDENTIALS"]
    return settings
