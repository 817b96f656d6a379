"""Only the cluster that a table's properties name may commit to it. A restored cluster takes it over.

The property is changed by a commit like any other, so it decides between two clusters: whatever the former one
has committed before is in the table that the restored one reads afterwards; whatever it tries to commit later
loses the race for its version, reads the table again, and finds that it is another cluster's
(``DeltaTopicTable``). So a cluster that was thought dead cannot add to a history that has gone on without it,
however late it wakes up."""

from __future__ import annotations

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InconsistentClusterIdError, OutcomeUnknownError, StorageError
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.tiering import delta_options
from stratalog.tiering.delta_entries import check_log
from stratalog.tiering.topic_table import CLUSTER_ID, COMMIT_ATTEMPTS, TopicTable

_PAUSE_S = 0.2


def hand_over(topic: TopicTable, former: str, to: str, options: StoreOptions, clock: Clock) -> bool:
    """Let cluster ``to`` be the one that commits to the topic's table, where it was ``former``. Whether there is a
    table. Harmless when repeated.

    Raises: InconsistentClusterIdError when the table is a third cluster's; StorageError; OutcomeUnknownError;
        CorruptionError, as ``check_log``.
    """
    uri = topic.uri
    failure: Exception | None = None
    for _ in range(COMMIT_ATTEMPTS):
        table = _open(topic, options)
        if table is None:
            return False
        found = table.metadata().configuration.get(CLUSTER_ID)
        if found == to:
            return True
        if found != former:
            raise InconsistentClusterIdError(
                f"the table {uri} belongs to cluster {found!r}, neither to {former!r} nor to {to!r}"
            )
        try:
            table.alter.set_table_properties(
                {CLUSTER_ID: to},
                raise_if_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as error:  # somebody was faster, or no answer came: the table tells
            failure = error
            clock.sleep(_PAUSE_S)
    said = "" if failure is None else delta_options.said(failure)
    raise OutcomeUnknownError(f"{uri} could not be handed over to cluster {to!r}; read before you retry: {said}")


def _open(topic: TopicTable, options: StoreOptions) -> DeltaTable | None:
    uri = topic.uri
    check_log(topic.remote, topic.folder)
    try:
        return DeltaTable(uri, storage_options=delta_options.storage_options(uri, options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise StorageError(f"cannot read the table {uri}: {delta_options.said(error)}") from None
