"""How pyiceberg reaches the remote tier: the properties of a file system of its own, made for one call and never
kept, for they hold credentials."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.partitions.store.address import OBJECT_SCHEMES
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.reached import Reached, reached
from stratalog.partitions.store.resolving import azure_connection_string

PREFIXES = {"s3": ("s3.", "client."), "az": ("adls.",), "abfss": ("adls.",), "gs": ("gcs.",)}
"""By scheme, how the names of its properties begin."""
_NEVER_MS = "253402300799000"


def iceberg_properties(uri: str, options: StoreOptions) -> dict[str, str]:
    """The properties for objects below ``uri``; none of a folder.

    Raises: StorageAuthenticationError, UnsupportedStoreError.
    """
    scheme = uri.partition("://")[0]
    if scheme != "s3" and scheme not in OBJECT_SCHEMES:
        return {}
    return properties_of(reached(uri, options))


def properties_of(here: Reached) -> dict[str, str]:
    """All that pyiceberg's file systems would else look for in their environment, but for Google's file of
    credentials and the identity of the machine, which they find there as brokers do."""
    options, shown = here.options, here.shown
    if here.scheme == "s3":
        return {
            "s3.endpoint": here.server,
            "s3.force-virtual-addressing": "false",
            "s3.access-key-id": shown["access_key"],
            "s3.secret-access-key": shown["secret_key"],
            **({"s3.session-token": shown["token"]} if "token" in shown else {}),
            **({"s3.region": options.region} if options.region else {}),
        }
    if here.scheme == "gs":
        token = "anonymous" if here.plain else shown.get("token")
        of_token = {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": _NEVER_MS} if token else {}
        return {"gcs.service.host": here.server, **of_token}
    return _of_azure(here, str(options.account), shown)


def _of_azure(here: Reached, account: str, shown: Mapping[str, str]) -> dict[str, str]:
    scheme, _, host = here.server.partition("://")
    found = {"adls.account-name": account, "adls.account-host": host}
    if "token" in shown:
        return found | {"adls.token": shown["token"]}
    if not shown:
        return found | {"adls.anon": "true"}
    return found | {
        "adls.connection-string": azure_connection_string(here.server, account, shown),
        "adls.blob-storage-authority": host.partition("/")[0],
        "adls.blob-storage-scheme": scheme,
        **{f"adls.{name.replace('_', '-')}": value for name, value in shown.items()},
    }
