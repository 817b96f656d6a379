"""A client of a schema registry that looks up the schema of an id (Confluent's REST interface)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError, RetriableError, StorageAuthorizationError
from stratalog.partitions.printable import printable
from stratalog.partitions.store.address import parse_server

PREFIX = "schema.registry."
"""The prefix of the registry's configs, as in Confluent's clients."""
_URL, _USER, _CA = (PREFIX + name for name in ("url", "basic.auth.user.info", "ssl.ca.location"))
_TIMEOUT_S = 30.0
_MOST_BYTES = 4 * 1024 * 1024
_SAID = 200
"""The number of characters of a library's error to repeat in stratalog's error."""


class SchemaRegistry:
    """Gives schemas by their ids. It can be pickled."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        """Raises: InvalidCallError for an unknown config, or a missing address."""
        if unknown := sorted(configs.keys() - {_URL, _USER, _CA}):
            raise InvalidCallError(f"{unknown[0]} is not a config of the registry; known: {_URL}, {_USER}, {_CA}")
        url = configs.get(_URL, "")
        parse_server(url, _URL)
        self._url, self._user, self._ca = url.rstrip("/"), configs.get(_USER), configs.get(_CA)

    def schema(self, number: int) -> Any | None:
        """The schema of an id, as parsed JSON; None for an unknown id. Raises: RetriableError if the registry does
        not answer within 30 s; StorageAuthorizationError if it refuses.
        """
        # Imported here, because loading the HTTP client takes longer than most runs use the registry.
        from stratalog.bridges.formats.registry_http import RefusedError, get

        what = f"the schema registry {self._url}, asked for schema {number}"
        try:
            url = f"{self._url}/schemas/ids/{number}"
            return _schema_of(get(url, self._user, self._ca, _TIMEOUT_S, _MOST_BYTES))
        except RefusedError as refused:
            if refused.status == 404:
                return None
            if refused.status in (401, 403):
                raise StorageAuthorizationError(f"{what}: {refused}") from None
            raise RetriableError(f"{what}: {refused}") from None
        except (OSError, ValueError) as error:
            raise RetriableError(f"{what}: {printable(str(error))[:_SAID]}") from error


def _schema_of(answer: bytes) -> Any:
    """The schema in a response. Raises: ValueError."""
    found = parse_json(answer, dict[str, Any])
    if found.get("schemaType", "AVRO") != "AVRO":
        return None
    return parse_json(str(found.get("schema")))


def divided(configs: Mapping[str, str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Divide configs into those of the brokers and those of the schema registry."""
    given = configs or {}
    of_registry = {name: value for name, value in given.items() if name.startswith(PREFIX)}
    return {name: value for name, value in given.items() if name not in of_registry}, of_registry
