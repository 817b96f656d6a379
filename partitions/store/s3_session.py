"""Sessions of botocore: its environment variables and profiles for S3, and the source of credentials.

Each signature reads the provider's credentials, as with botocore's refreshable credentials. But botocore renews
refreshable credentials 15 minutes before they expire, even if they are short-lived. The provider's credentials are
renewed by one rule for all clouds (``credentials``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import botocore.credentials
import botocore.session
from botocore.exceptions import BotoCoreError, ProfileNotFound

from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store.address import parse_server
from stratalog.partitions.store.credentials import CredentialSource, NoCredentialsFoundError, renewing
from stratalog.partitions.store.protocol import StoreOptions

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class NamedByAws(NamedTuple):
    """The values of the environment or the profile; None if neither has one."""

    endpoint_url: str | None
    region: str | None


def s3_session(options: StoreOptions) -> botocore.session.Session:
    """A session with the credentials of the provider, the profile, the environment or the instance."""
    session = botocore.session.Session(profile=options.profile)
    if options.credentials is not None:
        session.register_component("credential_provider", _Resolver(options.credentials))
    return session


def named_by_aws(options: StoreOptions) -> NamedByAws:
    """The endpoint and the region, in botocore's order of sources. AWS_REGION, which other clients use but
    botocore does not, comes after AWS_DEFAULT_REGION. An endpoint in the options takes precedence. A missing
    profile gives no values here; the first request reports it.

    Raises: UnsupportedStoreError for an endpoint whose address is refused, or files that cannot be read.
    """
    session = botocore.session.Session(profile=options.profile)
    try:
        try:
            profile: Mapping[str, Any] = session.get_scoped_config()
        except ProfileNotFound:
            profile = {}
        region = os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or profile.get("region")
        ignored = os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or profile.get(
            "ignore_configured_endpoint_urls", ""
        )
        if options.endpoint_url is not None or str(ignored).lower() == "true":
            return NamedByAws(None, region)
        services = session.full_config.get("services", {}) if "services" in profile else {}
    except BotoCoreError as error:
        raise UnsupportedStoreError(f"the configuration of the AWS SDK cannot be read: {error}") from None
    for variable in _ENDPOINTS:
        if url := os.environ.get(variable):
            return NamedByAws(_server(url, variable), region)
    if "services" in profile and profile["services"] not in services:
        raise UnsupportedStoreError(
            f"the profile of the AWS SDK names the services section {profile['services']!r}, which is missing"
        )
    of_service = services.get(profile.get("services"), {}).get("s3", {})
    url = of_service.get("endpoint_url") if isinstance(of_service, Mapping) else None
    url = url or profile.get("endpoint_url")
    return NamedByAws(_server(url, "endpoint_url of the AWS profile") if url else None, region)


def _server(url: str, what: str) -> str:
    parse_server(url, what)
    return url


def shown_to_s3(options: StoreOptions) -> Mapping[str, str]:
    """The current credentials, under a provider's names. They are secrets: do not store them.

    Raises: NoCredentialsFoundError.
    """
    try:
        credentials = _session(options).get_credentials()
    except BotoCoreError as error:
        raise NoCredentialsFoundError(str(error)) from None
    if credentials is None:
        raise NoCredentialsFoundError("no credentials were found")
    frozen = credentials.get_frozen_credentials()
    shown = {"access_key": frozen.access_key, "secret_key": frozen.secret_key}
    return shown | ({"token": frozen.token} if frozen.token else {})


@lru_cache(maxsize=16)  # creating a session reads files; its credentials renew themselves
def _session(options: StoreOptions) -> botocore.session.Session:
    return s3_session(options)


class _Resolver:
    """Replaces botocore's chain: only the provider gives credentials."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    def load_credentials(self) -> Any:
        return _Provided(self._source)


class _Provided(botocore.credentials.Credentials):  # type: ignore[misc]
    """The provider's current credentials."""

    method = "provider"
    account_id = None

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    def get_frozen_credentials(self) -> Any:
        """Raises: NoCredentialsFoundError."""
        values = renewing(self._source).current().values
        return botocore.credentials.ReadOnlyCredentials(
            values["access_key"], values["secret_key"], values.get("token")
        )
