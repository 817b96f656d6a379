// ------------------------------------------------------------------------------------------------ the live page

// Only a served page has this script. It asks the server for new content while the page is viewed, and for records
// and versions when the reader requests them. Panels stay when new content arrives.
const POLL_MS = 5000, PATIENCE = 6; // polls during which new content waits while text is selected, or a list is open
const panels = new Map();
let lost = null, waited = 0;

async function ask(path, parameters, headers = {}) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(query ? `${path}?${query}` : path, { headers, cache: "no-store" });
  if (answer.status === 304) return null;
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ? `${found.error.code}: ${found.error.message}` : answer.statusText);
  return found;
}

async function refresh() {
  if (document.visibilityState !== "visible") return;
  const isBusy = !getSelection().isCollapsed || document.activeElement?.tagName === "SELECT";
  if (isBusy && waited < PATIENCE) { waited += 1; return; }
  waited = 0;
  try {
    const found = await ask("/content", {}, { "If-None-Match": `"${content.live.tag}"` });
    lost = null;
    if (found) take(found);
  } catch (error) {
    lost = error instanceof TypeError ? "the server does not answer" : error.message;
  }
  tellAge();
}

function take(found) {
  content = found;
  takePartitions();
  drawAll();
}

function live() {
  if (!content.live) return;
  setInterval(refresh, POLL_MS);
  document.addEventListener("visibilitychange", refresh);
}

// The reason why the page is out of date; empty if it is not.
function staleness() {
  const failed = content.live?.error;
  if (lost) return `The page is out of date: ${lost}.`;
  return failed ? `The cluster could not be read at ${utc(failed.at_ms)} UTC: ${failed.what}` : "";
}

function samplesSection() {
  const known = content.live.samples;
  const left = known?.left_out ? `, ${several(known.left_out, "series")} left out` : "";
  return chartsSection("samples", "Over time", known, "Scope of the figures", "The cluster",
    known ? `since ${utc(known.from_ms)} UTC, in steps of ${span(known.step_ms)}${left}` : "", "There are no figures yet.");
}

function panel(name, make) {
  if (!panels.has(name)) panels.set(name, make());
  return panels.get(name);
}

// Shows records of a partition: 20 from an offset or a time on, or the last ones.
function recordsPanel(row) {
  return panel(`records ${row.full}`, () => {
    const from = element("input", { "aria-label": `Offset or time, of ${row.full}`, placeholder: "offset, or 2026-01-31T12:00:00", "data-focus": `records ${row.full}` });
    const answer = element("div", { role: "status" });
    const next = element("button", { type: "button", hidden: true }, "Next");
    const look = async (place) => {
      answer.replaceChildren("…");
      try {
        const found = await ask("/records", { topic: row.name, partition: row.partition, ...place });
        answer.replaceChildren(...recordsFound(found));
        next.hidden = found.next >= found.high_watermark;
        next.onclick = () => look({ offset: found.next });
      } catch (error) {
        answer.replaceChildren(element("p", { class: "error" }, error.message));
      }
    };
    const form = element("form", { class: "look", onsubmit: (event) => {
      event.preventDefault();
      const place = from.value.trim();
      look(place === "" ? {} : /^\d+$/.test(place) ? { offset: place } : { time: place });
    } }, element("label", {}, from), element("button", {}, "Look"), next);
    return element("div", { class: "records" }, element("h3", {}, "Records"), form, answer);
  });
}

function recordsFound(found) {
  const text = (value) => (value == null ? element("i", { class: "quiet" }, "null")
    : element("span", { class: "mono" }, value.text, value.cut ? element("i", { class: "quiet" }, ` … ${several(value.cut, "character")} more`) : null));
  const headers = (one) => [...one.headers.map(([name, value]) => element("div", {}, text(name), ": ", text(value))),
    one.more_headers ? element("div", { class: "quiet" }, `${count(one.more_headers)} more`) : null];
  const source = found.remote ? "from the remote tier" : "from a broker";
  const facts = element("p", { class: "quiet" }, `log ${count(found.log_start)} to ${count(found.high_watermark)}; ${several(found.records.length, "record")} ${found.records.length ? source : "there"}`);
  if (!found.records.length) return [facts];
  return [facts, plainTable(["Offset", "Time (UTC)", `Key (${found.key_type})`, `Value (${found.value_type})`, "Headers"],
    found.records.map((one) => [count(one.offset), one.time, text(one.key), text(one.value), headers(one)]))];
}

function versionsPanel(topic) {
  return panel(`versions ${topic.name}`, () => {
    const answer = element("div", { role: "status" });
    const look = async () => {
      answer.replaceChildren("…");
      try {
        const found = await ask("/table", { topic: topic.name });
        answer.replaceChildren(plainTable(["Version", "Time (UTC)", "Operation", "By", "Files added", "Files removed"],
          found.versions.map((one) => [count(one.version), one.when, one.operation ?? "not readable", one.by, count(one.added), count(one.removed)]), [4, 5]));
      } catch (error) {
        answer.replaceChildren(element("p", { class: "error" }, error.message));
      }
    };
    return element("div", {}, element("h3", {}, "Remote table"),
      element("button", { type: "button", "data-focus": `versions ${topic.name}`, onclick: look }, "Show its last versions"), answer);
  });
}
