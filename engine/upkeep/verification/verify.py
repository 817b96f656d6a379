"""Verify: compares every replica and the remote tier with each other.

1. the partitions of the topics (``audit``)
2. the metadata log on its voters (``metadata``)

No log is changed. Damage is a failure of the report, with the replica, the file and the offsets. A damaged file
that no log uses is only a note. Damage is stored, and ``health`` reports it until a later check finds it repaired.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS, without_metadata
from stratalog.engine.upkeep.memory.kept_times import METADATA_LOG
from stratalog.engine.upkeep.memory.looks import remember_look
from stratalog.engine.upkeep.verification.audit import Audited, audit, failures_of, found_in, notes_of, rewrites_of
from stratalog.engine.upkeep.verification.metadata import VerifyRow, verify_metadata


def verify(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None = None,
    *,
    deep: bool = False,
) -> Report:
    """Verify the topics (None: all, and the metadata log, which is named ``__cluster_metadata``): check names,
    sizes, contiguity and footers, and with ``deep`` every byte. If all topics are verified, empty partitions of
    the engine's own topics have no rows, because most of them never hold a record.

    Raises: UnknownTopicOrPartitionError; errors from reading the metadata.
    """
    topics, with_metadata = without_metadata(topics)
    with execution.run("verify") as run:
        image = metadata.image()
        audits = audit(metadata, storage, execution, image, chosen_topics(image, topics), run, deep=deep)
        run.failures += failures_of(audits)
        found = found_in(audits)
        run.notes += [f"{image.topics[topic_id].name}: {note}" for topic_id, note in rewrites_of(audits).items()]
        run.notes += notes_of(audits)
        looked = [_row(each) for each in audits if each.looked is not None]
        run.add(
            row
            for row in looked
            if topics is not None or row.topic not in INTERNAL_TOPICS or row.files or row.findings
        )
        if with_metadata:
            row, wrong = verify_metadata(metadata, deep=deep)
            run.add([row])
            run.failures += wrong
            found[METADATA_LOG] = wrong
        run.notes += remember_look(storage, execution.clock, image, found, deep=deep)
    run.totals |= {
        "partitions": len(looked),
        "bytes": run.sum("bytes"),
        "findings": len(run.failures),
    }
    return run.report()


def _row(each: Audited) -> VerifyRow:
    assert each.looked is not None
    looks = each.looked.replicas
    return VerifyRow(
        topic=each.replicas.view.topic,
        partition=each.replicas.view.partition,
        replicas=len(looks),
        files=sum(len(look.live) + len(look.bad) for look in looks),
        bytes=sum(held.size_bytes for look in looks for held in look.live),
        remote_files=len(each.cold),
        findings=len(failures_of([each])),
    )
