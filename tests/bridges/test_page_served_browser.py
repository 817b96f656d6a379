"""The served page in a real Chromium: it reloads and keeps the reader's selection, links contain the view, records
can be read, a token opens it; with the keyboard alone, and without complaints of axe-core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from stratalog import Cluster
from stratalog.bridges.page.served.server import PageServer
from tests.browser import ENTER, Browser, browser, needs_axe, needs_chromium
from tests.screenshots import town

pytestmark = [pytest.mark.slow, needs_chromium]

TOKEN = "0123456789abcdef-token"
NAMES = "#partitions .open"
TAG = "return content.live.tag"
EVIL = "<img src=x onerror='window.evil=1'>"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster whose third broker is away."""
    folder = tmp_path_factory.mktemp("town")
    made = town(folder)
    made.topics.create("evil", partitions=3, replication_factor=2)
    made.produce("evil", [{"value": EVIL, "partition": number} for number in range(3)]).raise_for_failures()
    (folder / "b3").rename(folder / "away")
    (folder / "b3").mkdir()
    return made


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[PageServer]:
    with cluster.serve_page("127.0.0.1:0", every_s=None) as running:
        running.look()
        yield running


@pytest.fixture
def page(window: Browser, server: PageServer) -> Iterator[Browser]:
    """The open page, which refreshes as often as a test needs; at the end its console must be empty."""
    window.look()
    window.open("about:blank")
    window.open(server.url)
    yield window
    assert window.complaints() == []


def until(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come about")


def fresh(page: Browser, server: PageServer) -> None:
    """Observe the cluster again, and wait until the page shows it."""
    before = page.run(TAG)
    server.look()
    page.run("return refresh()")
    assert page.run(TAG) != before


def test_it_reloads_and_keeps_filters_open_rows_focus_and_place(page: Browser, server: PageServer) -> None:
    page.type("#partitions input[type=search]", "flights")
    page.run("document.querySelector('#partitions .open').click()")
    page.run(
        "scrollTo(0, 700); document.querySelector('#partitions input[type=search]').focus({preventScroll: true})"
    )
    before = page.run("return [scrollY, location.hash]")
    fresh(page, server)
    assert page.run("return [scrollY, location.hash]") == before
    assert page.texts(NAMES) == [f"flights-{number}" for number in range(6)]
    assert page.run("return document.querySelectorAll('#partitions .detail').length") == 1
    assert page.run("return document.activeElement.value") == "flights"
    page.press("-", "2")
    assert page.texts(NAMES) == ["flights-2"]


def test_it_asks_for_news_only_while_it_is_viewed_and_says_when_none_come(page: Browser) -> None:
    page.run("Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true})")
    page.run(
        "window.asked = 0; window.fetch = () => { window.asked += 1; return Promise.reject(new TypeError()); }"
    )
    page.run("return refresh()")
    assert page.run("return window.asked") == 0
    page.run("delete document.visibilityState; return refresh()")
    assert page.run("return window.asked") == 1
    assert page.texts(".stale") == ["The page is out of date: the server does not answer."]


def test_an_address_has_the_view(page: Browser, window: Browser) -> None:
    page.type("#partitions input[type=search]", "payments")
    page.click("#partitions thead th:nth-child(5) button")
    page.run("document.querySelector('#partitions .open').click()")
    names, address = page.texts(NAMES), page.run("return location.href")
    window.open("about:blank")
    window.open(address)
    assert page.texts(NAMES) == names
    assert page.run("return document.querySelector('#partitions [aria-sort]').ariaSort") == "descending"
    assert page.run("return document.querySelectorAll('#partitions .detail').length") == 1
    window.open("about:blank")
    window.open(address.partition("#")[0] + "#__proto__?__proto__.q=1&constructor.q=1&topics.__proto__=1")
    assert page.run("return [({}).q, Object.q]") == [None, None]


def test_a_finding_leads_to_its_partition_and_back(page: Browser) -> None:
    page.click("#health .chips li:nth-child(2) a")
    assert page.texts(NAMES) == ["flights-0"]
    assert page.run("return document.activeElement.innerText") == "flights-0"
    assert page.texts("#partitions .detail h3 a") == ["OfflineLogDirectoryCount"]
    page.click("#partitions .detail h3 a")
    assert page.run("return location.hash.split('?')[0]") == "#health"
    page.run("history.go(-2)")
    until(lambda: page.run("return location.hash") == "")
    assert page.run("return document.querySelectorAll('#partitions .detail').length") == 0


def test_internal_topics_are_last_and_a_group_opens_by_partition(page: Browser) -> None:
    assert page.texts(NAMES)[-1] == "__consumer_offsets-0"
    page.click("#groups tbody .open")
    head = page.texts("#groups .detail thead th")
    assert head == ["Partition", "Committed", "End", "Lag", "Last commit (UTC)"]
    lags = [int(one.replace(",", "")) for one in page.texts("#groups .detail td:nth-child(4)")]
    assert lags == sorted(lags, reverse=True)
    page.click("#groups .detail td a")
    assert page.texts(NAMES) == page.texts("#groups .detail tbody td:first-child")[:1]


def test_records_are_viewed_by_keyboard_alone_and_stay_when_news_come(
    page: Browser, server: PageServer, cluster: Cluster
) -> None:
    leaders = [one.leader for one in cluster.image.topic("evil").partitions]
    number = next(number for number, leader in enumerate(leaders) if leader != 3)
    page.press("/")
    page.press(*f"evil-{number}")
    page.run("document.querySelector('#partitions tbody .open').focus()")
    page.press(ENTER)
    while page.run("return !document.activeElement.closest('.look')"):
        page.press("\ue004")
    page.press("0", ENTER)
    until(lambda: len(page.texts(".records tbody tr")) == 1)
    assert page.texts(".records tbody td:nth-child(4)") == [EVIL]
    fresh(page, server)
    assert page.texts(".records tbody td:nth-child(4)") == [EVIL]
    assert page.run("return document.activeElement.value") == "0"
    assert page.run("return window.evil === undefined && document.images.length === 0")


def test_a_topic_has_its_configs_and_the_versions_of_its_table(page: Browser) -> None:
    page.run("[...document.querySelectorAll('#topics .open')].find((one) => one.innerText === 'flights').click()")
    sources = page.texts("#topics .detail td:nth-child(3)")
    assert sources == sorted(sources, key=["topic", "cluster", "default"].index)
    page.run("document.querySelector('#topics .detail button').click()")
    until(lambda: len(page.texts("#topics .detail table")) == 2)
    versions = [int(one) for one in page.texts("#topics .detail [role=status] tbody td:first-child")]
    assert versions == sorted(versions, reverse=True)
    assert versions[-1] == 0


def test_a_link_with_a_token_opens_the_page_and_leaves_none_in_the_address(
    cluster: Cluster, window: Browser
) -> None:
    with cluster.serve_page("127.0.0.1:0", token=TOKEN, every_s=None) as server:
        window.open(server.url)
        assert window.texts("h1") == ["stratalog"]
        window.type("#token", "not the token at all")
        window.press(ENTER)
        until(lambda: window.texts("[role=alert]") == ["The token is wrong."])
        window.open("about:blank")
        window.open(f"{server.url}#token={TOKEN}")
        until(lambda: window.texts("h1") == ["flights"])
        assert window.run("return location.href") == server.url
        assert window.run("return document.cookie") == ""
        refused = [one for one in window.complaints() if "401" not in one]
        assert refused == []


@needs_axe
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(page: Browser, width: int, dark: bool) -> None:
    page.look(dark=dark, width=width)
    for part in ("topics", "groups", "partitions"):
        page.run(f"document.querySelector('#{part} .open').click()")
    page.run("document.querySelector('.look button').click()")
    until(lambda: len(page.texts(".records tbody tr")) > 0)
    assert page.violations() == []
    boxes = "[document.documentElement, ...document.querySelectorAll('.sheet')]"
    wider = f"{boxes}.filter((one) => one.scrollWidth > one.clientWidth)"
    assert page.run(f"return {wider}.map((one) => one.innerText.slice(0, 40))") == []


@needs_axe
def test_axe_finds_nothing_on_the_page_that_asks_for_the_token(cluster: Cluster, window: Browser) -> None:
    with cluster.serve_page("127.0.0.1:0", token=TOKEN, every_s=None) as server:
        for dark in (False, True):
            window.look(dark=dark)
            window.open(server.url)
            assert window.violations() == []
    window.complaints()
