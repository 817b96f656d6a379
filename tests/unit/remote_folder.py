"""The content of the remote tier, by the tables and by the folders."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable

from stratalog.partitions import paths
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering import delta_options
from stratalog.tiering.remote_objects import RemoteObjects
from tests.unit.cluster_harness import LiveCluster


def listed(live: LiveCluster, topic: str = "t") -> set[str]:
    """Paths of the files in a topic's table, as any reader of Delta sees them."""
    folder = f"{topic}-{live.cluster.image.topic(topic).topic_id}"
    uri = str(live.remote / folder)
    if not DeltaTable.is_deltatable(uri):
        return set()
    return {file.removeprefix(uri + "/") for file in DeltaTable(uri).file_uris()}


def lying(live: LiveCluster, topic: str = "t") -> set[str]:
    """Paths of the segments in a topic's folder."""
    folder = f"{topic}-{live.cluster.image.topic(topic).topic_id}"
    return set(RemoteObjects.of(folder, LocalStore(str(live.remote)).list(folder)).segments)


def assert_tables_and_folders_agree(live: LiveCluster) -> None:
    """Check that every file of the remote tier is listed or part of a table's log, that every listed file exists,
    that nothing is half written, and that every folder belongs to a topic."""
    topics = live.cluster.image.topics
    for name in [topic.name for topic in topics.values()]:
        assert listed(live, name) == lying(live, name)
    for path in live.in_remote():
        folder, _, rest = path.removeprefix(f"{live.remote}/").partition("/")
        if folder == "_clusters":
            continue  # the files from which a cluster can be restored
        parsed = paths.parse_topic_folder(folder)
        assert parsed is not None, path
        assert parsed[1] in topics, path
        assert rest.startswith("_delta_log/") or paths.parse_remote_segment_path(rest) is not None, path


def assert_table_and_folder_agree(store: Store, folder: str, options: StoreOptions) -> None:
    """Check that every object of a topic's folder, in any store, is listed or part of the table's log, that every
    listed one exists with its size, and that nothing is half written.
    """
    uri = delta_options.table_uri(store, folder)
    table = DeltaTable(uri, storage_options=delta_options.storage_options(uri, options))
    actions = pa.table(table.get_add_actions())
    sizes = dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))
    found = RemoteObjects.of(folder, store.walk(folder))
    assert {path: one.object.size_bytes for path, one in found.segments.items()} == sizes
    assert not found.foreign
    assert store.sweep_staging(0, dry_run=True) == 0


def topic_folders(live: LiveCluster) -> list[str]:
    """The non-empty folders of topics in the remote tier."""
    tops = {path.removeprefix(f"{live.remote}/").partition("/")[0] for path in live.in_remote()}
    return sorted(top for top in tops if paths.parse_topic_folder(top) is not None)
