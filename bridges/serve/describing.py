"""The requests with which tools show a topic or a group: DescribeConfigs, ListGroups, DescribeGroups."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from stratalog.bridges.serve.codes import ErrorCode, error_code
from stratalog.bridges.serve.members import GroupMembers
from stratalog.bridges.serve.metadata import NODE, ServedMetadata, missing
from stratalog.bridges.serve.protocol import Fields
from stratalog.engine.config.settings import configs_in_force
from stratalog.engine.config.topic_config import TOPIC_CONFIGS
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions.errors import StratalogError

_TOPIC, _BROKER = 2, 4
"""Types of resources that have configs."""
_SOURCES = {"topic": 1, "cluster": 3, "default": 5}
"""Kafka's DYNAMIC_TOPIC_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG and DEFAULT_CONFIG."""
_TYPES: dict[type, int] = {bool: 1, str: 2, int: 5, float: 6}
"""Kafka's BOOLEAN, STRING, LONG and DOUBLE, by the type of a config's default."""


class Descriptions:
    """Configs of topics, and the groups."""

    def __init__(self, metadata: ServedMetadata, members: GroupMembers) -> None:
        self._metadata = metadata
        self._members = members

    def configs(self, body: Fields) -> Fields:
        """DescribeConfigs: the effective configs of a topic; the endpoint has no broker configs."""
        image = self._metadata.image(max_age_s=0)
        documented = bool(body.get("include_documentation"))
        asked = {(one["resource_type"], one["resource_name"] or ""): one for one in body["resources"] or ()}
        return {
            "throttle_time_ms": 0,
            "resources": [_configs(image, *key, one, documented) for key, one in asked.items()],
        }

    def groups(self, body: Fields) -> Fields:
        """ListGroups: all groups with members or committed offsets."""
        names, error = self._groups()
        here = self._members.described()
        return {
            "throttle_time_ms": 0,
            "error_code": error,
            "groups": [
                {"group": name, "protocol_type": here[name]["protocol_type"] if name in here else ""}
                for name in sorted(names | here.keys())
            ],
        }

    def described(self, body: Fields) -> Fields:
        """DescribeGroups: a group with only committed offsets is in the state Empty, and an unknown group in the
        state Dead, as in Kafka.
        """
        names, error = self._groups()
        here = self._members.described()
        found = []
        for name in dict.fromkeys(body["groups"] or ()):
            known = name in names or name in here
            empty: Fields = {
                "state": "Empty" if known else "Dead",
                "protocol_type": "",
                "protocol": "",
                "members": [],
            }
            found.append(
                {"error_code": ErrorCode.NONE if known else error, "group": name, **here.get(name, empty)}
            )
        return {"throttle_time_ms": 0, "groups": found}

    def _groups(self) -> tuple[AbstractSet[str], int]:
        """The names of all groups, and an error if some cannot be read."""
        try:
            found, failures = self._metadata.groups()
        except StratalogError as error:
            return frozenset(), error_code(error, of_group=True)
        return found.keys(), ErrorCode.COORDINATOR_NOT_AVAILABLE if failures else ErrorCode.NONE


def _configs(image: ClusterImage, kind: int, name: str, asked: Fields, with_documentation: bool) -> Fields:
    topic_id = image.topic_ids.get(name) if kind == _TOPIC else None
    error, entries = int(ErrorCode.NONE), list[Fields]()
    if topic_id is not None:
        wanted = frozenset(asked["config_names"] or ())  # in Kafka an empty list means all, like null
        entries = [
            {
                "config_names": key,
                "config_value": value,
                "read_only": True,
                "config_source": _SOURCES[source],
                "is_sensitive": False,
                "config_synonyms": [],
                "config_type": _TYPES[type(TOPIC_CONFIGS[key].default)],
                "documentation": TOPIC_CONFIGS[key].doc if with_documentation else None,
            }
            for key, value, source in configs_in_force(image.topics[topic_id].configs, image.configs)
            if not wanted or key in wanted
        ]
    elif kind == _TOPIC:
        error = missing(name)
    elif kind != _BROKER or name not in ("", str(NODE)):
        error = ErrorCode.INVALID_REQUEST
    empty = {"error_code": error, "error_message": None, "resource_type": kind, "resource_name": name}
    return {**empty, "config_entries": entries}
