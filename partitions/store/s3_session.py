"""Sessions of botocore: where S3's credentials and the region of a profile come from.

A provider's credentials are read at each signature, as botocore's own refreshable ones are. Those are renewed 15
minutes before their end, whatever their life is; one rule for all clouds is in ``credentials``.
"""

from __future__ import annotations

from typing import Any

import botocore.credentials
import botocore.session

from stratalog.partitions.store.credentials import CredentialSource, renewing
from stratalog.partitions.store.protocol import StoreOptions


def s3_session(options: StoreOptions) -> botocore.session.Session:
    """A session that finds credentials by the provider, the profile, the environment or the instance."""
    session = botocore.session.Session(profile=options.profile)
    if options.credentials is not None:
        session.register_component("credential_provider", _Resolver(options.credentials))
    return session


class _Resolver:
    """Takes the place of botocore's chain: a provider is asked, or nobody."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    def load_credentials(self) -> Any:
        return _Provided(self._source)


class _Provided(botocore.credentials.Credentials):  # type: ignore[misc]
    """The provider's credentials of the moment."""

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
