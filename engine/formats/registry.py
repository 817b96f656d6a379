"""A schema registry, as far as a reader needs it: the schema of an id (Confluent's REST interface)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError, RetriableError, StorageAuthorizationError
from stratalog.partitions.store.address import parse_server

PREFIX = "schema.registry."
"""Of configs that are the registry's, by the names that Confluent's clients have."""
_URL, _USER, _CA = (PREFIX + name for name in ("url", "basic.auth.user.info", "ssl.ca.location"))
_TIMEOUT_S = 30.0
_MOST_BYTES = 4 * 1024 * 1024


class SchemaRegistry:
    """Gives schemas by their ids. It can be pickled."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        """Raises: InvalidCallError for a config that it does not have, or for none that says where it is."""
        if unknown := sorted(configs.keys() - {_URL, _USER, _CA}):
            raise InvalidCallError(f"{unknown[0]} is no config of the registry: there are {_URL}, {_USER}, {_CA}")
        url = configs.get(_URL, "")
        parse_server(url, _URL)
        self._url, self._user, self._ca = url.rstrip("/"), configs.get(_USER), configs.get(_CA)

    def schema(self, number: int) -> Any | None:
        """The schema of an id, as JSON tells it; None for an id that the registry does not have.

        Raises: RetriableError where it does not answer; StorageAuthorizationError where it refuses to.
        """
        import ssl  # here, as the client of HTTP: they take longer to load than most runs ask of a registry
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        asked = Request(f"{self._url}/schemas/ids/{number}", headers={"Accept": "application/json"})
        if self._user is not None:
            # Which a redirect does not take along: it may lead to a stranger.
            basic = base64.b64encode(self._user.encode()).decode()
            asked.add_unredirected_header("Authorization", f"Basic {basic}")
        secure = ssl.create_default_context(cafile=self._ca) if self._url.startswith("https") else None
        what = f"the schema registry {self._url}, asked for schema {number}"
        try:
            with urlopen(asked, timeout=_TIMEOUT_S, context=secure) as answer:
                return _schema_of(answer.read(_MOST_BYTES))
        except HTTPError as error:
            if error.code == 404:
                return None
            if error.code in (401, 403):
                raise StorageAuthorizationError(f"{what}: {error.code} {error.reason}") from error
            raise RetriableError(f"{what}: {error.code} {error.reason}") from error
        except (OSError, ValueError) as error:
            raise RetriableError(f"{what}: {error}") from error


def _schema_of(answer: bytes) -> Any:
    """The schema in an answer. Raises: ValueError."""
    found = parse_json(answer, dict[str, Any])
    if found.get("schemaType", "AVRO") != "AVRO":
        return None
    return parse_json(str(found.get("schema")))
