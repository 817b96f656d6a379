"""The page in a real Chromium: its console stays empty while it is clicked, typed into, and read in light, dark
and on a phone. Times are printed (``-s``), never asserted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.jobs.main import main
from tests.browser import ENTER, Browser, browser, needs_chromium
from tests.screenshots import picture_page
from tests.unit.cluster_harness import LiveCluster

pytestmark = [pytest.mark.slow, needs_chromium]

EVIL = "<img src=x onerror='window.evil=1'><b>bold</b>"
WIDTHS = (320, 390, 768, 900, 1024, 1200, 1280)
NAMES = "#partitions tbody tr:not(.detail) > td:first-child"
STATES = "#partitions tbody tr:not(.detail) > td:nth-child(2)"

# The contrast of each visible text with everything behind it, by WCAG 2, and the required contrast.
CONTRASTS = """
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const [r, g, b, a = 1] = parts(getComputedStyle(at).backgroundColor);
    if (a > 0) return [r, g, b];
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.getElementById("page"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
  if (!text || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const [a, b] = [light(parts(style.color)), light(ground(element))].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  found.push([(a + 0.05) / (b + 0.05), large ? 3 : 4.5, text]);
}
return found;
"""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved page of a cluster of 21 partitions whose broker 3 is away, with two days of history."""
    folder = tmp_path_factory.mktemp("town")
    return Path(picture_page(folder).save(folder / "report.html"))


@pytest.fixture
def page(window: Browser, file: Path) -> Iterator[Browser]:
    """The open page; at the end its console must be empty."""
    window.look()
    window.open(file)
    yield window
    assert window.complaints() == []


def count(page: Browser, selector: str) -> int:
    found: int = page.run("return document.querySelectorAll(arguments[0]).length", selector)
    return found


def choose(page: Browser, selector: str, value: str) -> None:
    script = "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
    page.run(f"{script} one.dispatchEvent(new Event('change'))", selector, value)


def test_health_is_on_top_with_its_commands(page: Browser) -> None:
    assert page.texts("h1, .verdict strong") == ["flights", "1 error"]
    kinds = page.texts("#health article h3")
    assert kinds == ["OfflineLogDirectoryCount"]
    assert page.texts("#health code")[0] == "stratalog maintain --cluster /srv/cluster.toml"
    subjects = "#health article:nth-child(1) .chips li"
    before = count(page, subjects)
    page.click(f"{subjects} button")
    assert count(page, subjects) == 22 > before
    page.click("#health article button:last-child")
    time.sleep(0.2)
    assert page.texts("#health .command button")[0] in {"Copied", "Selected"}
    assert page.run("return getSelection().toString()") == "stratalog maintain --cluster /srv/cluster.toml"


def test_a_column_sorts_both_ways(page: Browser) -> None:
    def records() -> list[int]:
        cells = page.texts("#partitions tbody td:nth-child(5)")
        return [int(one.replace(",", "")) for one in cells]

    head = "#partitions thead th:nth-child(5)"
    page.click(f"{head} button")
    assert page.run("return document.querySelector(arguments[0]).ariaSort", head) == "descending"
    assert records() == sorted(records(), reverse=True)
    page.click(f"{head} button")
    assert page.run("return document.querySelector(arguments[0]).ariaSort", head) == "ascending"
    assert records() == sorted(records())
    assert count(page, "#partitions [aria-sort]") == 1


def test_a_filter_leaves_what_has_all_its_words(page: Browser) -> None:
    search = "#partitions input[type=search]"
    page.type(search, "FLIGHTS broker 3")
    assert len(page.texts(NAMES)) == 6
    assert all(name.startswith("flights-") for name in page.texts(NAMES))
    page.type(search, " nothing")
    assert page.texts("#partitions tbody td") == ["No row matches."]


def test_states_and_what_is_pending_are_chosen(page: Browser) -> None:
    options = page.texts("#partitions select:not([aria-label^=Sort]) option")
    assert "under-replicated (21)" in options
    choose(page, "#partitions select", "under-replicated")
    assert {state.partition(",")[0] for state in page.texts(STATES)} == {"under-replicated"}
    choose(page, "#partitions select", "pending")
    assert {name.rpartition("-")[0] for name in page.texts(NAMES)} == {"flights", "payments"}


def test_internal_topics_are_shown_when_they_are_asked_for(page: Browser) -> None:
    topics = "#topics tbody td:first-child"
    assert page.texts(topics) == ["audit", "clicks", "flights", "payments"]
    page.click("#topics input[type=checkbox]")
    assert page.texts(topics) == ["audit", "clicks", "flights", "payments", "__consumer_offsets"]


def test_a_topic_leads_to_its_partitions(page: Browser) -> None:
    page.click("#topics tbody tr:last-child td:first-child button")
    page.click("#topics .detail a")
    assert page.texts(NAMES) == [f"payments-{number}" for number in range(4)]


def test_a_partition_opens_by_keys_alone(page: Browser) -> None:
    page.press("/")
    assert page.run("return document.activeElement.type") == "search"
    page.press(*"flights-2")
    page.run("document.querySelector('#partitions tbody .open').focus()")
    page.press(ENTER)
    active = "const one = document.activeElement; return [one.innerText, one.ariaExpanded]"
    assert page.run(active) == ["flights-2", "true"]
    legend = page.texts("#partitions .detail .legend li")
    assert [one.split()[0] for one in legend] == ["Cold", "Both", "Pending"]
    assert page.texts("#partitions .detail table td:nth-child(2)").count("unreachable") == 1
    page.press(ENTER)
    assert page.run(active) == ["flights-2", "false"]
    assert count(page, "#partitions .detail") == 0


def test_every_control_is_reached_by_tab_and_shows_its_focus(page: Browser) -> None:
    seen = []
    controls = "button, a, select, input, [tabindex='0']"
    reachable: list[str] = page.run(
        "return [...document.querySelectorAll(arguments[0])]"
        ".filter((one) => !one.disabled && one.checkVisibility()).map((one) => one.outerHTML)",
        controls,
    )
    page.run("document.activeElement.blur()")
    for _ in range(len(reachable)):
        page.press("\ue004")
        seen.append(page.run("return document.activeElement.outerHTML"))
        style = page.run(
            "return getComputedStyle(document.activeElement).outlineStyle + document.activeElement.tagName"
        )
        assert not style.startswith("none"), seen[-1]
    assert sorted(seen) == sorted(reachable)


def test_a_chart_is_read_by_arrow_keys_and_a_topic_is_chosen(page: Browser) -> None:
    titles = page.texts("#activity .chart h3")
    assert titles[0] == "Appended records"
    page.run("document.querySelector('#activity .chart').focus()")
    page.press("\ue011")  # home
    first = page.texts("#activity .chart .top span")[0]
    page.press("\ue014")  # right
    second = page.texts("#activity .chart .top span")[0]
    assert ": " in first
    assert first != second
    choose(page, "#activity select", "clicks")
    assert page.texts("#activity .chart h3") == ["Appended records", "Replicated bytes"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_all_text_has_the_contrast_of_wcag(page: Browser, width: int, dark: bool) -> None:
    page.look(dark=dark, width=width)
    page.run("document.querySelectorAll('#partitions .open')[12].click()")
    found: list[tuple[float, float, str]] = page.run(CONTRASTS)
    assert len(found) > 200
    assert [(round(ratio, 2), text) for ratio, least, text in found if ratio < least] == []


def test_the_button_turns_light_to_dark_and_back(page: Browser) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.click("header button")
    dark = page.run(ground)
    page.look(dark=True)
    page.click("header button")
    assert page.run(ground) == light != dark


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(page: Browser, width: int) -> None:
    page.look(width=width)
    page.run("document.querySelectorAll('#partitions .open')[12].click()")
    boxes = "[document.documentElement, ...document.querySelectorAll('.sheet')]"
    wider = f"{boxes}.filter((one) => one.scrollWidth > one.clientWidth)"
    assert page.run(f"return {wider}.map((one) => one.innerText.slice(0, 40))") == []


def test_nothing_is_loaded_and_nothing_foreign_runs(page: Browser) -> None:
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    page.run(
        "const one = document.createElement('script'); one.textContent = 'window.evil = 1';"
        "document.body.append(one)"
    )
    assert page.run("return window.evil === undefined")
    refused = page.complaints()
    assert len(refused) == 1
    assert "Content Security Policy" in refused[0]


def test_names_that_are_html_are_shown_as_text(window: Browser, tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic()
    live.fill("a")
    live.cluster.groups.commit(EVIL, {("t", 0): 1}).raise_for_failures()
    window.open(Path(live.cluster.report().save(tmp_path / "report.html")))
    assert window.texts("#groups tbody td:first-child") == [EVIL]
    assert window.run("return window.evil === undefined && document.images.length === 0")
    assert window.texts("#activity p, #runs p") == ["Nothing is recorded yet: no operation has left an event."] * 2
    assert window.complaints() == []


def test_a_cluster_that_cannot_be_opened_shows_that_and_nothing_else(window: Browser, tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    with live.unreachable(1):
        assert main(["report", "-o", str(tmp_path / "report.html"), "--cluster", str(live.file)]) == 0
    window.open(tmp_path / "report.html")
    assert window.texts(".verdict strong, section h2") == ["1 error", "Health"]
    assert window.complaints() == []


def test_ten_thousand_partitions_open_at_once(window: Browser, tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    for number in range(10):
        live.topic(f"t{number}", partitions=1_000)
    live.append({partition: ["a"] for partition in range(500)}, "t3").raise_for_failures()
    began = time.perf_counter()
    page = live.driver().report()
    took = time.perf_counter() - began
    file = Path(page.save(tmp_path / "report.html"))
    window.look()
    window.open(file)
    timing: dict[str, Any] = window.run("return performance.getEntriesByType('navigation')[0].toJSON()")
    print(
        f"\n10,000 partitions: made in {took:.1f} s, {len(page.html) / 2**20:.1f} MiB, "
        f"opened in {timing['loadEventEnd'] / 1000:.2f} s",
        end="",
    )
    assert window.texts("#partitions .pager span") == ["1–50 of 10,000"]
    assert len(window.texts(NAMES)) == 50
    began = time.perf_counter()
    window.type("#partitions input[type=search]", "t3-499")
    print(f", filtered by six letters in {time.perf_counter() - began:.2f} s")
    assert window.texts(NAMES) == ["t3-499"]
    assert count(window, "*") < 3_000
    assert window.complaints() == []
