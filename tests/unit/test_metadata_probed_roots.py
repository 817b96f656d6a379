"""Metadata records that follow from a probe of the brokers' roots."""

from __future__ import annotations

import pytest

from stratalog.engine.metadata.commands import FenceBroker, RegisterBroker, UnregisterBroker
from stratalog.engine.metadata.probed_roots import (
    Another,
    ApplyProbe,
    Finding,
    Found,
    NotOurs,
    ProbedMetadata,
    Same,
    Unreachable,
)
from stratalog.engine.metadata.records import (
    FenceBrokerRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    VoterId,
    VotersRecord,
)
from stratalog.partitions.errors import BrokerUnreachableError, InconsistentClusterIdError, StaleBrokerError
from tests.unit.metadata_harness import Metadata, an_id

UNREACHABLE = Unreachable(BrokerUnreachableError("no broker.json"))
NOT_OURS = NotOurs(InconsistentClusterIdError("belongs to cluster 'x'"))


def with_voters(*voters: int, brokers: int = 4) -> Metadata:
    """Brokers, some of which are metadata voters; all of them hold ``t``."""
    meta = Metadata(brokers)
    ids = tuple(VoterId(voter, an_id(voter)) for voter in voters)
    meta.commit(VotersRecord(cluster_id="c", voters=ids))
    return meta


def anew(broker_id: int) -> Another:
    """The broker's root was formatted again."""
    return Another(RegisterBroker(broker_id, an_id(7000 + broker_id), None, f"file:///{broker_id}", "root"))


def findings(meta: Metadata, **found: Finding) -> ApplyProbe:
    """The findings (``b2=...``) under the current registrations; all other roots are unchanged."""
    named = {int(name[1:]): finding for name, finding in found.items()}
    return ApplyProbe(
        tuple(
            Found(broker_id, broker.broker_epoch, named.get(broker_id, Same()))
            for broker_id, broker in meta.image.brokers.items()
        )
    )


def settle(meta: Metadata, **found: Finding) -> ProbedMetadata:
    return meta.do(findings(meta, **found))


def test_if_everything_is_as_registered_nothing_is_committed_or_noted() -> None:
    meta = with_voters(1)
    assert findings(meta).decide(meta.image).records == ()
    assert settle(meta) == ProbedMetadata(meta.image, ())


def test_the_answer_is_the_metadata_with_what_was_committed() -> None:
    meta = with_voters(1)
    settled = settle(meta, b2=UNREACHABLE, b3=anew(3))
    assert settled.image == meta.image
    assert meta.t.isr == (1, 4)


def test_an_unreachable_broker_is_fenced_once() -> None:
    meta = with_voters(1)
    assert settle(meta, b2=UNREACHABLE).notes == ("broker 2 is fenced: BROKER_NOT_AVAILABLE: no broker.json",)
    assert meta.log[-1] == FenceBrokerRecord(broker_id=2)
    before = len(meta.log)
    assert settle(meta, b2=UNREACHABLE).notes == ("broker 2 remains fenced: BROKER_NOT_AVAILABLE: no broker.json",)
    assert len(meta.log) == before


def test_a_broker_that_is_back_is_unfenced_under_its_registration() -> None:
    meta = with_voters(1)
    settle(meta, b2=UNREACHABLE)
    assert settle(meta).notes == ("broker 2 is unfenced: its root is back",)
    epoch = meta.image.brokers[2].broker_epoch
    assert meta.log[-1] == UnfenceBrokerRecord(broker_id=2, broker_epoch=epoch)


@pytest.mark.parametrize("fenced_first", [False, True])
def test_another_incarnation_is_registered_and_unfenced(fenced_first: bool) -> None:
    meta = with_voters(1)
    if fenced_first:
        settle(meta, b2=UNREACHABLE)
    settled = settle(meta, b2=anew(2))
    assert isinstance(meta.log[-1], RegisterBrokerRecord)
    assert not meta.image.brokers[2].fenced
    assert meta.t.isr == (1, 3, 4)
    assert "formatted again" in settled.notes[0]


def test_a_foreign_root_is_fenced_and_never_registered() -> None:
    meta = with_voters(1)
    assert settle(meta, b2=NOT_OURS).notes == (
        "broker 2 is fenced: INCONSISTENT_CLUSTER_ID: belongs to cluster 'x'",
    )
    assert meta.log[-1] == FenceBrokerRecord(broker_id=2)


@pytest.mark.parametrize("finding", [Same(), anew(2), NOT_OURS, UNREACHABLE], ids=lambda f: type(f).__name__)
def test_a_broker_that_was_fenced_by_hand_is_left_alone_whatever_its_root_says(finding: Finding) -> None:
    meta = with_voters(1)
    meta.do(FenceBroker(2, by_hand=True))
    before = len(meta.log)
    (note,) = settle(meta, b2=finding).notes
    assert note.startswith("broker 2 was fenced by hand, and remains fenced")
    assert len(meta.log) == before


def test_a_broker_that_is_fenced_by_hand_after_the_look_is_left_alone() -> None:
    """A fence changes no broker epoch: the decision uses the metadata at the commit, not at the look."""
    meta = with_voters(1)
    settle(meta, b2=UNREACHABLE)
    late = findings(meta)
    meta.do(FenceBroker(2, by_hand=True))
    assert late.decide(meta.image).records == ()


@pytest.mark.parametrize("finding", [Same(), anew(2), NOT_OURS, UNREACHABLE], ids=lambda f: type(f).__name__)
def test_findings_about_an_earlier_registration_are_stale(finding: Finding) -> None:
    meta = with_voters(1)
    late = findings(meta, b2=finding)
    meta.register(2, incarnation=5)
    with pytest.raises(StaleBrokerError, match="probe its root again"):
        late.decide(meta.image)


def test_findings_about_a_broker_that_was_unregistered_are_stale() -> None:
    meta = with_voters(1)
    meta.register(9)
    late = findings(meta, b9=UNREACHABLE)
    meta.do(UnregisterBroker(9))
    with pytest.raises(StaleBrokerError):
        late.decide(meta.image)


@pytest.mark.parametrize(("gone", "stays"), [(2, 3), (3, 2)])
@pytest.mark.parametrize("how", ["formatted anew", "somebody else's"])
def test_a_member_that_may_come_back_stays_in_an_isr_without_live_members(gone: int, stays: int, how: str) -> None:
    """The last member of an ISR stays when it is fenced, so it must be the broker whose data is not known to be
    lost.
    """
    meta = with_voters(1)
    meta.propose([1, 2, 3])
    meta.elect(2, resign=False)
    meta.propose([2, 3])
    found: dict[str, Finding] = {
        f"b{gone}": anew(gone) if how == "formatted anew" else NOT_OURS,
        f"b{stays}": UNREACHABLE,
    }
    settle(meta, **found)
    assert (meta.t.isr, meta.t.leader) == ((stays,), None)
    settle(meta, **{f"b{gone}": Same() if how == "formatted anew" else NOT_OURS})
    assert (meta.t.isr, meta.t.leader) == ((stays,), stays)


@pytest.mark.parametrize(
    ("voters", "found", "settles"),
    [
        ((1,), {"b1": UNREACHABLE}, False),
        ((1,), {"b1": NOT_OURS}, False),
        ((1, 2, 3), {"b1": UNREACHABLE, "b2": UNREACHABLE}, False),
        ((1, 2, 3), {"b1": UNREACHABLE}, True),
        ((1, 2, 3), {"b1": anew(1)}, True),
        ((2, 3), {"b2": UNREACHABLE}, False),
        ((2, 3), {}, True),
    ],
)
def test_a_driver_that_reaches_no_majority_of_voters_fences_no_broker(
    voters: tuple[int, ...], found: dict[str, Finding], settles: bool
) -> None:
    """Probably only this driver is isolated; other drivers may reach the roots."""
    meta = with_voters(*voters)
    settled = settle(meta, b4=UNREACHABLE, **found)
    assert meta.image.brokers[4].fenced == settles
    if not settles:
        (note,) = settled.notes
        assert "nothing was changed: this driver cannot reach" in note


def test_moved_or_restored_metadata_needs_a_person() -> None:
    meta = with_voters(1)
    moved = Another(RegisterBroker(1, an_id(1), "a", "file:///1", "elsewhere"))
    (note,) = settle(meta, b1=moved, b2=anew(2)).notes
    assert meta.t.isr == (1, 2, 3, 4)
    assert "--trust-copy" in note
