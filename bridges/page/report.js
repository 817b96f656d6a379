// ------------------------------------------------------------------------------------------------ the page

const age = element("span", { class: "quiet" });
const stale = element("p", { class: "stale error", role: "alert" });

function tellAge() {
  const ms = Date.now() - content.now_ms;
  const again = content.live ? ", reloads itself" : "";
  const text = `as of ${utc(content.now_ms)} UTC, ${ms < 60e3 ? "just now" : `${span(ms)} ago`}${again}`;
  if (age.textContent !== text) age.textContent = text;
  const why = staleness();
  if (stale.textContent !== why) stale.textContent = why;
  stale.hidden = !why;
}

const theme = element("button", { type: "button", "data-focus": "theme", onclick: () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "light dark"
    ? matchMedia("(prefers-color-scheme: dark)").matches : document.documentElement.style.colorScheme === "dark";
  document.documentElement.style.colorScheme = dark ? "light" : "dark";
} }, "Light or dark");

function page() {
  const isOpen = content.brokers.length > 0; // otherwise only the cluster's health is known
  const health = healthSection();
  const parts = [
    health && ["health", "Health", content.health.findings.length, health],
    ...(isOpen && content.live ? [["samples", "Over time", null, samplesSection()]] : []),
    ...(isOpen ? [["activity", "Activity", null, activitySection()], ["tiers", "Tiers", null, tiersSection()],
      ["topics", "Topics", content.topics.length, topicsTable()], ["partitions", "Partitions", partitions.length, partitionsTable()],
      ["brokers", "Brokers", content.brokers.length, brokersTable()], ["groups", "Groups", content.groups.length, groupsTable()],
      ["runs", "Last runs", content.runs.length, runsTable()]] : [])].filter(Boolean);
  return [
    element("header", {}, element("h1", {}, content.cluster), age, theme),
    stale,
    verdict(),
    element("nav", { "aria-label": "Parts of the page" }, parts.map(([id, name, number]) =>
      link(id, () => ({}), name, number == null ? null : element("small", {}, count(number))))),
    element("main", {}, isOpen ? figures() : null, ...parts.map(([, , , section]) => section)),
    element("footer", {}, `stratalog report: ${several(content.requests, "storage request")}, ${content.seconds} s. Log ends are lower bounds, because the last appends are not opened.`),
  ];
}

// Draw everything from the content and the view; the reader stays in place.
function drawAll() {
  const { activeElement: active } = document, focus = active?.dataset?.focus;
  const range = active?.type === "search" ? [active.selectionStart, active.selectionEnd] : null;
  const { scrollX, scrollY } = window;
  document.getElementById("page").replaceChildren(...page().filter(Boolean));
  tellAge();
  window.scrollTo(scrollX, scrollY);
  const named = focus && document.querySelector(`[data-focus="${CSS.escape(focus)}"]`);
  const again = active !== document.body && active?.isConnected ? active : named; // panels are the same as before
  if (!again) return;
  again.focus({ preventScroll: true });
  if (range) again.setSelectionRange(...range);
}

function start() {
  if (new URLSearchParams(location.hash.slice(1)).has("token")) write("replaceState", "#");
  readAddress();
  takePartitions();
  drawAll();
  if (at) reach();
  window.addEventListener("popstate", () => {
    readAddress();
    drawAll();
    reach();
  });
  setInterval(tellAge, content.live ? 5e3 : 60e3);
  live();
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || /INPUT|SELECT/.test(event.target.tagName)) return;
  event.preventDefault();
  document.querySelector("#partitions input[type=search]")?.focus();
});
start();
