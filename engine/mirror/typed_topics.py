"""Topics whose values are decoded on the way: they are typed from their beginning, and grow with the schema."""

from __future__ import annotations

from stratalog.engine.admin.topics import alter_topic
from stratalog.engine.driver.context import Context
from stratalog.engine.formats.typed import TypedValues
from stratalog.engine.metadata.image import TopicImage
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import same_type, type_from_json


def let_grow(context: Context, here: TopicImage, values: TypedValues | None, *, dry_run: bool) -> None:
    """The topic's values are of the type that comes now; it grows where fields were added.

    Raises: InvalidCallError.
    """
    check_typed(here, values)
    if values is not None and not same_type(type_from_json(here.value_schema or ""), values.type):
        alter_topic(context, here.name, value_schema=values.schema, dry_run=dry_run)


def check_typed(here: TopicImage, values: TypedValues | None) -> None:
    """Raises: InvalidCallError for a topic whose values are typed, and none that comes, or the other way round."""
    if (here.value_schema is None) != (values is None):
        raise InvalidCallError(
            f"topic {here.name!r} has typed values: say how they are decoded (--format, --schema)"
            if values is None
            else f"topic {here.name!r} has values of bytes, and stays so: leave --format and --schema out, or "
            "delete it here and mirror it anew"
        )
