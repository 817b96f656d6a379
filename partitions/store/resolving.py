"""Resolves the server, the region and the account of a storage once, from its options, the environment or a
profile. All clients get the result, and look up nothing themselves.

    s3://             endpoint_url, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile (its ``services`` first);
                      except those that AWS_IGNORE_CONFIGURED_ENDPOINT_URLS disables region, AWS_DEFAULT_REGION,
                      AWS_REGION, the profile
    az://, abfss://   endpoint_url, AZURE_STORAGE_CONNECTION_STRING, the account's own server
                      the address, account, AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME
    gs://             endpoint_url, STORAGE_EMULATOR_HOST, GOOGLE_CLOUD_UNIVERSE_DOMAIN

The first source that is set applies. Executors get the driver's result with the options; each process finds its
credentials itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store.address import OBJECT_SCHEMES, parse_server
from stratalog.partitions.store.encryption import check_connection
from stratalog.partitions.store.protocol import StoreOptions

CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
EMULATOR = "STORAGE_EMULATOR_HOST"
GOOGLE = "https://storage.googleapis.com"
AZURE_DOMAIN = "core.windows.net"
REGION_OF_OTHERS = "us-east-1"
"""The region for a custom server without a region, because a signature needs one."""

_EMULATED = {
    "ACCOUNTNAME": "devstoreaccount1",
    "ACCOUNTKEY": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BLOBENDPOINT": "http://127.0.0.1:10000/devstoreaccount1",
}
"""The account and the public key of Azure's emulator, for ``UseDevelopmentStorage=true``."""


def resolved(uri: str, options: StoreOptions) -> StoreOptions:
    """``options`` with the server, the region and the account of the storage at ``uri``. A server of None means
    the cloud's default server. Options that have already been resolved, perhaps by another process, are returned
    unchanged.

    Raises: UnsupportedStoreError for a server without encryption, or for a refused address, which it does not
    repeat.
    """
    scheme, _, rest = uri.partition("://")
    bucket = rest.partition("/")[0]
    if options.resolved or not bucket or (scheme != "s3" and scheme not in OBJECT_SCHEMES):
        return options
    if scheme == "s3":
        found = _s3(options)
    elif scheme == "gs":
        found = replace(options, endpoint_url=options.endpoint_url or _google(os.environ))
    else:
        found = _azure(bucket.partition("@")[2], options, os.environ)
    check_connection(found.endpoint_url or "", found)
    protocol, separator, server = (found.endpoint_url or "").partition("://")
    return replace(found, endpoint_url=f"{protocol.lower()}{separator}{server}" or None, resolved=True)


def connection_string(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The parts of Azure's connection string, by their names in capitals. They include secrets.

    Raises: UnsupportedStoreError, without repeating the string.
    """
    parts: dict[str, str] = {}
    for part in filter(None, environ.get(CONNECTION_STRING, "").split(";")):
        name, separator, value = part.partition("=")
        if not separator:
            raise UnsupportedStoreError(
                f"{CONNECTION_STRING} cannot be read: write it as NAME=VALUE;NAME=VALUE, as Azure shows it"
            )
        parts[name.strip().upper()] = value.strip()
    return {**_EMULATED, **parts} if parts.get("USEDEVELOPMENTSTORAGE", "").lower() == "true" else parts


def account_of(parts: Mapping[str, str]) -> str | None:
    """The account in a connection string. Raises: UnsupportedStoreError."""
    if "ACCOUNTNAME" in parts or "BLOBENDPOINT" not in parts:
        return parts.get("ACCOUNTNAME")
    return parse_server(parts["BLOBENDPOINT"], f"BlobEndpoint of {CONNECTION_STRING}").server.partition(".")[0]


def another_account(account: str, other: str) -> UnsupportedStoreError:
    """The error for a connection string whose account is not ``account``."""
    named = other if other.isalnum() else "another"  # the text may be a secret in the wrong place
    return UnsupportedStoreError(
        f"the storage account is {account}, but {CONNECTION_STRING} names {named}: remove one of them"
    )


def azure_connection_string(server: str, account: str, shown: Mapping[str, str]) -> str:
    """The connection string of an account with its key or a signature, which is how Azure's library takes any
    server. It contains a secret.
    """
    secret = (
        f"AccountKey={shown['account_key']}"
        if shown.get("account_key")
        else f"SharedAccessSignature={shown['sas_token'].removeprefix('?')}"
    )
    return f"BlobEndpoint={server};AccountName={account};{secret}"


def _s3(options: StoreOptions) -> StoreOptions:
    from stratalog.partitions.store.s3_session import named_by_aws  # imported here, because it loads botocore

    endpoint, region = options.endpoint_url, options.region
    if endpoint is None or region is None:
        named = named_by_aws(options)
        endpoint, region = endpoint or named.endpoint_url, region or named.region
    return replace(options, endpoint_url=endpoint, region=region or (REGION_OF_OTHERS if endpoint else None))


def _google(environ: Mapping[str, str]) -> str | None:
    emulator, universe = environ.get(EMULATOR, ""), environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "")
    if emulator and emulator != "default":
        url = emulator if emulator.startswith(("http://", "https://")) else f"http://{emulator}"
        parse_server(url, EMULATOR)
        return url
    return f"https://storage.{universe}" if universe and universe != "googleapis.com" else None


def _azure(host: str, options: StoreOptions, environ: Mapping[str, str]) -> StoreOptions:
    parts = connection_string(environ)
    account = host.partition(".")[0] or options.account
    of_string = account_of(parts)
    if account is not None and of_string is not None and account != of_string:
        if options.credentials is None:
            raise another_account(account, of_string)
        parts, of_string = {}, None  # the provider's credentials belong to the account
    account = account or of_string or environ.get("AZURE_STORAGE_ACCOUNT_NAME") or None
    endpoint = options.endpoint_url or _endpoint_of(parts, host)
    if endpoint is None and account is not None:
        endpoint = f"https://{host.replace('.dfs.', '.blob.', 1) or f'{account}.blob.{AZURE_DOMAIN}'}"
    return replace(options, account=account, endpoint_url=endpoint and endpoint.rstrip("/"))


def _endpoint_of(parts: Mapping[str, str], host: str) -> str | None:
    """The server in a connection string. If the address has a ``host``, the string's domain is ignored."""
    url = parts.get("BLOBENDPOINT")
    if url is None and not host and "ACCOUNTNAME" in parts:
        domain = parts.get("ENDPOINTSUFFIX", AZURE_DOMAIN)
        url = f"{parts.get('DEFAULTENDPOINTSPROTOCOL', 'https')}://{parts['ACCOUNTNAME']}.blob.{domain}"
    if url is not None:
        parse_server(url, f"BlobEndpoint of {CONNECTION_STRING}")
    return url
