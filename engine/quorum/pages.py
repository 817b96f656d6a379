"""Topics packed in pages, each unpacked when one of its topics is first asked for: of a large cluster, a
driver decodes the topics that it looks at. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import msgspec
import pyarrow as pa

from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.metadata.overlay import Overlay

PARTITIONS_PER_PAGE = 512
"""A page with this number of partitions is full; a topic is never split."""

_codec = pa.Codec("zstd", compression_level=1)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[TopicImage, ...])


class Page(msgspec.Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """Some topics, in order of their ids."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    """One for each of ``ids``."""
    packed: bytes
    """The ``TopicImage`` of each, in MessagePack, compressed."""
    size_bytes: int
    """Of ``packed`` without compression."""

    @cached_property
    def topics(self) -> Mapping[str, TopicImage]:
        """The topics by id. Raises: ValueError kinds for a page that this release has not packed."""
        unpacked = _codec.decompress(self.packed, self.size_bytes)
        return dict(zip(self.ids, _decoder.decode(unpacked), strict=True))


def pack(topics: Iterable[TopicImage]) -> Iterator[Page]:
    """Pages of topics that come in the order of their ids."""
    some: list[TopicImage] = []
    partitions = 0
    for topic in topics:
        some.append(topic)
        partitions += max(1, len(topic.partitions))
        if partitions >= PARTITIONS_PER_PAGE:
            yield _page(some)
            some, partitions = [], 0
    if some:
        yield _page(some)


def _page(topics: list[TopicImage]) -> Page:
    data = _encoder.encode(topics)
    return Page(
        ids=tuple(topic.topic_id for topic in topics),
        names=tuple(topic.name for topic in topics),
        packed=_codec.compress(data, asbytes=True),
        size_bytes=len(data),
    )


class PagedTopics(Mapping[str, TopicImage]):
    """Topics by id, of which only those are unpacked that were asked for, with the rest of their pages."""

    __slots__ = ("_page_of", "pages")

    def __init__(self, pages: Iterable[Page]) -> None:
        self.pages = tuple(pages)
        self._page_of: dict[str, Page] = {}
        for page in self.pages:
            self._page_of.update(dict.fromkeys(page.ids, page))

    def __getitem__(self, topic_id: str) -> TopicImage:
        return self._page_of[topic_id].topics[topic_id]

    def __contains__(self, topic_id: object) -> bool:
        return topic_id in self._page_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._page_of)

    def __len__(self) -> int:
        return len(self._page_of)


def pages_of(topics: Mapping[str, TopicImage]) -> list[Page]:
    """All topics in pages. Pages that they were read from, and that nothing of has changed, are used again."""
    pages: list[Page] = []
    match topics:
        case PagedTopics():
            return list(topics.pages)
        case Overlay(base=PagedTopics(pages=before)):
            touched = topics.changed.keys() | topics.gone
            pages += (page for page in before if touched.isdisjoint(page.ids))
    packed = {topic_id for page in pages for topic_id in page.ids}
    pages += pack(topics[topic_id] for topic_id in sorted(topics.keys() - packed))
    return pages
