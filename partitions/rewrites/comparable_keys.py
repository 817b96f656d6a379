"""Keys that Arrow can compare: binary keys, and keys of declared types that are equal exactly when their bytes
are. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def is_comparable(data_type: pa.DataType) -> bool:
    """Whether keys of this type are equal exactly when their bytes are. This includes structs of such types."""
    if pa.types.is_struct(data_type):
        return all(is_comparable(data_type.field(i).type) for i in range(data_type.num_fields))
    return not (pa.types.is_floating(data_type) or pa.types.is_nested(data_type))


def flat_keys(key: pa.Array) -> Iterator[pa.Array]:
    """Columns without structs that are equal exactly when the keys are. (Arrow cannot group by structs.)"""
    if isinstance(key, pa.ChunkedArray):
        key = pa.concat_arrays(key.chunks) if key.num_chunks else pa.array([], key.type)
    if not pa.types.is_struct(key.type):
        yield key
        return
    yield key.is_valid()
    for field in key.flatten():
        yield from flat_keys(field)
