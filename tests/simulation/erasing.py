"""Erasing keys, and what is left of them (E1, E2, E4)."""

from __future__ import annotations

from collections.abc import Container

from stratalog.engine.upkeep.erasing.erase import erase
from stratalog.engine.upkeep.erasing.plan import WantedRecords
from stratalog.engine.upkeep.snapshots.snapshot import snapshot
from stratalog.partitions import paths
from tests.simulation.actor import Actor, check_report
from tests.simulation.content import content_of
from tests.simulation.oracle import History
from tests.simulation.roots import Root
from tests.simulation.scheduler import Violation


def erase_key(actor: Actor, key: int, how: str) -> str:
    """All records of a key so far; ``again``: what another run has begun. What is reported stays erased (E1)."""
    from tests.simulation.world import TOPIC

    wanted = WantedRecords(None if how == "again" else [b"k%d" % key])
    ports = actor.ports
    actor.world.oracle.keys_wanted |= set() if wanted.keys is None else {b"k%d" % key}
    published = actor.world.published
    before = {} if published is None else published.begin(actor.driver)
    report = erase(ports.metadata, ports.storage, ports.execution, [TOPIC], wanted, now=how == "now")
    assert report.certificate is not None
    failed = {failure.item for failure in report.failures}
    for topic in report.certificate.topics:
        for one in topic.partitions:
            lasting = any(not left.waits for left in one.not_erased)
            if not lasting and f"{TOPIC}-{one.partition}" not in failed:
                history = actor.world.oracle.history((topic.topic_id, one.partition))
                offsets = {at for start, end in one.offsets for at in range(start, end)}
                history.reported |= offsets
                history.whole |= offsets if report.whole else set()
                if how != "again":
                    for gone in (history.keys_gone, *([history.keys_whole] if report.whole else [])):
                        gone[b"k%d" % key] = max(gone.get(b"k%d" % key, 0), one.looked_to)
                actor.world.ledger.count("erased" if one.offsets else "nothing to erase")
    if published is not None and report.whole:
        published.check_whole(actor.driver, before)
    actor.world.ledger.count("erased wholly" if report.whole else "erased in part")
    return check_report(actor, report)


def take_snapshot(actor: Actor, *_: int) -> str:
    """Make a snapshot of the topic by hand."""
    from tests.simulation.world import TOPIC

    ports = actor.ports
    report = snapshot(ports.metadata, ports.storage, ports.execution, ports.memory, [TOPIC], by_hand=True)
    if any(row["outcome"] == "made" for row in report.rows):
        actor.world.ledger.count("snapshots")
    if any(row.get("published") for row in report.rows):
        actor.world.ledger.count("published snapshots")
    return check_report(actor, report)


def look_for_erased(actor: Actor) -> str:
    """No object of the remote tier has a record that was reported as wholly erased (E4). Raises: Violation."""
    world = actor.world
    for key, history in world.oracle.histories.items():
        topic = world.oracle.image.topics.get(key[0])
        if topic is not None:
            folder = paths.topic_folder(topic.name, topic.topic_id)
            check_remote(world.remote, folder, key[1], history, history.whole)
    return "nothing"


def check_remote(remote: Root, folder: str, partition: int, history: History, offsets: Container[int]) -> None:
    """E4 for a partition of the topic with this folder. Raises: Violation."""
    own = paths.join(folder, str(partition))
    for name in [*remote.folders]:
        if name == own or name.startswith(own + "/"):
            check_erased(history, offsets, remote, name, "E4")


def check_erased(history: History, offsets: Container[int], root: Root, folder: str, invariant: str) -> None:
    """No file of a folder has an erased record at these offsets. Raises: Violation."""
    for name, (_, data) in root.folders.get(folder, {}).items():
        if not name.endswith(".parquet"):
            continue
        content = content_of(data)
        for offset, token in enumerate(content.tokens, content.base_offset):
            if offset in offsets and token == history.committed.get(offset) != b"%d:" % offset:
                raise Violation(f"{invariant}: {token!r} at {offset} was erased, and is in {root.place}/{name}")
