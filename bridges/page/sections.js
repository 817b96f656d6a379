// ------------------------------------------------------------------------------------------------ tiers

// Bytes by tier, as parts of the bar; or offsets. Offsets that are no longer in the log are a stub at the left.
function sizesBar(sizes, large) {
  const sum = sizes.reduce((a, b) => a + b, 0) || 1;
  let x = 0;
  const parts = order.map((tier) => [tier, sizes[content.tiers.indexOf(tier)]]).filter(([, size]) => size);
  const shapes = parts.map(([tier, size]) => {
    const width = Math.max(4, (size / sum) * 1000);
    x += width;
    return ["rect", { class: tier, x: x - width, y: 0, width, height: 10 }];
  });
  const label = parts.map(([tier, size]) => `${tier} ${bytes(size)}`).join(", ") || "empty";
  return drawing(Math.max(1000, x), 10, { class: large ? "bar large" : "bar", role: "img", "aria-label": label }, ...shapes);
}
const order = ["expired", "cold", "both", "pending", "hot"];

function spansBar(row, large) {
  const named = row.spans.map(([tier, start, end]) => [content.tiers[tier], start, end]);
  const kept = named.filter(([tier]) => tier !== "expired");
  const stub = kept.length < named.length ? 40 : 0;
  const start = kept.length ? kept[0][1] : 0, end = kept.length ? kept[kept.length - 1][2] : 1;
  const at = (offset) => stub + ((offset - start) / (end - start)) * (1000 - stub);
  const shapes = kept.map(([tier, from, to]) =>
    ["rect", { class: tier, x: at(from), y: 0, width: Math.max(4, at(to) - at(from)), height: 10 }]);
  if (stub) shapes.push(["rect", { class: "expired", x: 0, y: 0, width: kept.length ? stub - 6 : 1000, height: 10 }]);
  const label = named.map(([tier, from, to]) => `${tier} ${count(from)} to ${count(to)}`).join(", ") || "empty";
  return drawing(1000, 10, { class: large ? "bar large" : "bar", role: "img", "aria-label": label }, ...shapes);
}

function legend(items) {
  return element("ul", { class: "legend" }, items.map(([tier, figure, more]) =>
    element("li", {}, element("i", { class: tier }), `${TIERS[tier][0]} `, element("strong", {}, figure),
      element("small", {}, more))));
}

function tiersSection() {
  const sums = content.tiers.map((_, index) => content.topics.reduce((sum, topic) => sum + topic.sizes[index], 0));
  const items = order.map((tier) => [tier, bytes(sums[content.tiers.indexOf(tier)]), TIERS[tier][1]]);
  return element("section", { id: "tiers" },
    element("div", { class: "head" }, heading("Tiers"), element("span", { class: "quiet" }, "bytes of one copy of each log")),
    element("div", { class: "sheet tiers" }, sizesBar(sums, true), legend(items)));
}

// ------------------------------------------------------------------------------------------------ health

// Each subject links to its row, if there is one.
function subject(kind, name) {
  if (kind === "records-lag-max" || kind === "committed-beyond-log-end") {
    const rows = content.groups.filter((row) => row.group === name);
    return rows.length ? link("groups", () => only("groups", name, rows.map(groupKey)), name) : name;
  }
  if (rowsByName.has(name) && kind !== "remote-table") return link("partitions", () => only("partitions", name, [name]), name);
  if (content.topics.some((topic) => topic.name === name)) return link("topics", () => only("topics", name, [name]), name);
  if (/^broker \d+$/.test(name)) return link("brokers", () => ({}), name);
  return name;
}

const only = (part, q, open) => ({ [part]: { q, open: new Set(open), internal: true } });

function findingBox(one, isAlone = true) {
  const subjects = element("ul", { class: "chips" });
  const list = (most) => {
    const hidden = one.subjects.length - most;
    subjects.replaceChildren(...one.subjects.slice(0, most).map((name) => element("li", { class: "mono" }, subject(one.kind, name))));
    if (hidden > 0) {
      subjects.append(element("li", {}, element("button", { type: "button", onclick: () => list(Infinity) }, `${count(hidden)} more`)));
    }
    if (most >= one.subjects.length && one.count > one.subjects.length) {
      subjects.append(element("li", {}, `and ${count(one.count - one.subjects.length)} more`));
    }
  };
  list(SOME);
  const since = one.since_ms == null ? null : `since ${utc(one.since_ms)} UTC, ${span(content.now_ms - one.since_ms)}`;
  const kind = isAlone ? one.kind : link("health", () => ({}), one.kind);
  return element("article", { class: `finding ${one.severity}` },
    element("div", { class: "top" }, element("strong", { class: "tag" }, one.severity), element("h3", {}, kind), element("span", {}, since)),
    element("p", {}, sentence(one.what)), isAlone ? subjects : null, command(one.do));
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");

function command(line) {
  const code = element("code", {}, line);
  const button = element("button", { type: "button", onclick: copy }, "Copy");
  async function copy() {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(line);
      button.textContent = "Copied";
    } catch {
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }
  return element("div", { class: "command" }, code, button);
}

function verdict() {
  const { findings, unread } = content.health;
  const of = (severity) => findings.filter((one) => one.severity === severity).length;
  const counts = ["error", "warning"].filter(of).map((severity) => several(of(severity), severity));
  if (unread.length) counts.push(`${count(unread.length)} not checked`);
  const level = of("error") || unread.length ? "error" : of("warning") ? "warning" : "ok";
  const said = {
    error: "An operator is needed: the commands are below.",
    warning: "The next runs of maintain should fix it.",
    ok: "There is nothing to do.",
  }[level];
  return element("section", { class: `verdict ${level}`, "aria-label": "Verdict" }, element("strong", {}, counts.join(", ") || "Healthy"), element("span", {}, said));
}

function healthSection() {
  const { findings, unread } = content.health;
  if (!findings.length && !unread.length) return null;
  return element("section", { id: "health" },
    element("div", { class: "head" }, heading("Health")),
    element("div", { class: "sheet" }, findings.map((one) => findingBox(one)), unread.map((line) =>
      element("article", { class: "finding error" },
        element("div", { class: "top" }, element("strong", { class: "tag" }, "not checked")), element("p", {}, line)))));
}

function figures() {
  const known = content.figures, topics = content.topics;
  const sum = (value) => topics.reduce((total, topic) => total + (value(topic) || 0), 0);
  const behind = (name) => (known[name] ? `for ${span(known[name])}` : "nothing waits");
  const offline = known.OfflinePartitionsCount, few = known.UnderReplicatedPartitions;
  const items = [
    ["Brokers", count(known.ActiveBrokerCount),
      content.brokers.length ? `in service, of ${count(content.brokers.length)}` : "not known"],
    ["Partitions", count(content.partitions.length), offline || few ? [offline ? `${count(offline)} offline` : null, few ? `${count(few)} under-replicated` : null].filter(Boolean).join(", ") : "all in sync"],
    ["Records", count(sum((topic) => topic.records)), `in ${several(topics.filter((topic) => !topic.internal).length, "topic")}`],
    ["On brokers", bytes(sum((topic) => topic.local_bytes)), "all replicas"],
    ["In the remote tier", bytes(sum((topic) => topic.remote_bytes)), several(topics.filter((topic) => topic.remote_bytes != null).length, "topic")],
    ["Not tiered", bytes(known.RemoteCopyLagBytes || 0), behind("remote-copy-lag-ms")],
    ["Not replicated", `${count(known["replication-lag-records"] || 0)}`, known["replication-lag-records"] ? `records, ${behind("replication-lag-ms")}` : "records"],
    ["Largest group lag", count(known["records-lag-max"]), "records"],
  ];
  return element("dl", { class: "figures" }, items.map(([name, value, more]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value), element("dd", {}, more))));
}

// ------------------------------------------------------------------------------------------------ activity

function chart({ title, unit, level, values }, from, step, name) {
  const most = unit === "ratio" ? 1 : Math.max(1, ...values.map((value) => value || 0)), width = 1000 / values.length;
  const y = (value) => 100 - (value / most) * 96;
  let path = "", drawn = false;
  values.forEach((value, index) => {
    const x = index * width;
    if (value == null) return;
    if (!level) path += value ? `M${x + width * 0.1} 100V${y(value)}H${x + width * 0.9}V100Z` : "";
    else path += `${drawn ? "L" : "M"}${x + width / 2} ${y(value)}h.01`; // a dot where it stands alone
    drawn = true;
  });
  const last = [...values].reverse().find((value) => value != null);
  const usual = level ? `now ${shown(last, unit)}` : `most ${shown(most, unit)} in ${span(step)}`;
  const readout = element("span", { class: "quiet", role: "status" }, usual);
  const picture = drawing(1000, 100, { "aria-hidden": "true" }, ["path", { d: path, class: level ? "level" : "" }], ["line", { y1: 0, y2: 100, visibility: "hidden" }]);
  let at = values.length - 1;
  const point = (index) => {
    at = Math.max(0, Math.min(values.length - 1, index));
    const line = picture.querySelector("line"), x = (at + 0.5) * width;
    for (const [name, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) line.setAttribute(name, value);
    readout.textContent = `${utc(from + at * step)}: ${values[at] == null ? "unknown" : shown(values[at], unit)}`;
  };
  const leave = () => {
    picture.querySelector("line").setAttribute("visibility", "hidden");
    readout.textContent = usual;
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    point(Math.floor(((event.clientX - box.left) / box.width) * values.length));
  });
  picture.addEventListener("pointerleave", leave);
  const keys = { ArrowLeft: () => point(at - 1), ArrowRight: () => point(at + 1), Home: () => point(0), End: () => point(values.length - 1) };
  const total = level ? `now ${shown(last, unit)}` : `${shown(values.reduce((a, b) => a + b, 0), unit)} in total`;
  return element("div", {
    class: "sheet chart", tabindex: 0, "data-focus": name, role: "group", "aria-label": `${title}: ${total}; arrow keys read it`, onblur: leave,
    onkeydown: (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } } },
    element("div", { class: "top" }, element("h3", {}, title), readout), picture,
    element("div", { class: "ends" }, element("span", {}, utc(from).slice(5)), element("span", {}, utc(from + values.length * step).slice(5))));
}

const noHistory = () => (content.history_unread
  ? `The history cannot be read: ${content.history_unread}`
  : "Nothing is recorded yet: no operation has left an event.");

// Charts of one scope at a time, which the reader chooses.
function chartsSection(id, title, known, label, all, note, nothing) {
  const scopes = known ? Object.keys(known.scopes) : [], mine = chosen(id);
  const charts = element("div", { class: "charts" });
  const show = (scope) => charts.replaceChildren(...known.scopes[scope].map((series) => chart(series, known.from_ms, known.step_ms, `${id} ${series.title}`)));
  const choose = element("select", {
    "aria-label": label, "data-focus": `${id} of`,
    onchange: () => { mine.of = choose.value; show(choose.value); remember(id); } },
    scopes.map((scope) => element("option", { value: scope, selected: scope === mine.of }, scope || all)));
  if (scopes.length) show(scopes.includes(mine.of) ? mine.of : scopes[0]);
  return element("section", { id },
    element("div", { class: "head" }, heading(title),
      known ? element("span", { class: "quiet" }, note) : null, scopes.length > 1 ? choose : null),
    scopes.length ? charts : element("p", { class: "sheet empty" }, nothing));
}

function activitySection() {
  const known = content.activity;
  return chartsSection("activity", "Activity", known, "Topic of the activity", "All topics",
    known ? `UTC, a bar is ${span(known.step_ms)}` : "",
    known ? "The recorded operations have moved no data." : noHistory());
}

// ------------------------------------------------------------------------------------------------ the tables

let partitions = [];
let rowsByName = new Map();

function takePartitions() {
  partitions = content.partitions.map((row) => Object.fromEntries(content.partition_columns.map((name, index) => [name, row[index]])));
  for (const row of partitions) {
    const topic = content.topics[row.topic];
    row.name = topic.name;
    row.full = `${row.name}-${row.partition}`;
    row.internal = topic.internal;
    row.level = worst([OF_STATE[row.state], ...row.findings.map((number) => content.health.findings[number].severity)]);
    row.size = row.sizes.reduce((a, b) => a + b, 0);
    row.records = row.log_end == null ? null : row.log_end - row.log_start;
    row.pending = row.spans.filter(([tier]) => content.tiers[tier] === "pending").reduce((sum, [, start, end]) => sum + end - start, 0);
  }
  rowsByName = new Map(partitions.map((row) => [row.full, row]));
}

function worst(levels) {
  return levels.reduce((a, b) => (RANK[b] > RANK[a] ? b : a), "ok");
}

// Findings that the state already shows are not repeated, nor is a broker that is offline.
const STATED = ["OfflinePartitionsCount", "UnderMinIsrPartitionCount", "UnderReplicatedPartitions", "OfflineLogDirectoryCount"];

function state(level, text, findings = []) {
  const more = new Set(findings.map((number) => content.health.findings[number].kind).filter((kind) => !STATED.includes(kind)));
  return element("span", { class: level === "ok" ? "quiet" : level }, element(level === "ok" ? "span" : "strong", {}, [text, ...more].join(", ")));
}

function topicsTable() {
  const order = ["offline", "under min ISR", "under-replicated", "reassigning"];
  const states = (topic) => order.filter((name) => topic.states[name]).map((name) => `${count(topic.states[name])} ${name}`).join(", ");
  const level = (topic) => worst([...Object.keys(topic.states).map((name) => OF_STATE[name]), ...topic.findings.map((number) => content.health.findings[number].severity)]);
  return table({
    id: "topics", title: "Topics", rows: content.topics, sort: [0, false], nothing: "There are no topics.",
    key: (topic) => topic.name, detail: topicDetail, last: (topic) => topic.internal,
    text: (topic) => `${topic.name} ${states(topic)} ${topic.policy}`,
    filters: content.topics.some((topic) => topic.internal) ? [tick("internal", "internal", (topic) => !topic.internal)] : [],
    columns: [
      { title: "Topic", value: (t) => t.name },
      { title: "State", state: true, value: (t) => -RANK[level(t)], cell: (t) => state(level(t), states(t) || "in sync", t.findings) },
      { title: "Partitions", number: true, value: (t) => t.partitions, cell: (t) => `${count(t.partitions)} × ${t.replication_factor}` },
      { title: "Records", number: true, value: (t) => t.records, cell: (t) => count(t.records) },
      { title: "Tiers", wide: true, value: (t) => t.sizes.reduce((a, b) => a + b, 0), cell: (t) => sizesBar(t.sizes) },
      { title: "Brokers", number: true, value: (t) => t.local_bytes, cell: (t) => bytes(t.local_bytes) },
      { title: "Remote", number: true, value: (t) => t.remote_bytes, cell: (t) => bytes(t.remote_bytes) },
      { title: "Pending", number: true, minor: true, value: (t) => t.pending_records, cell: (t) => count(t.pending_records) },
      { title: "Kept", minor: true, value: (t) => t.policy },
    ],
  });
}

function partitionsTable() {
  const counted = (keeps) => partitions.filter(keeps).length;
  const kinds = [
    ["", "All", () => true],
    ["need", "With findings", (row) => row.level !== "ok"],
    ...Object.keys(OF_STATE).map((name) => [name, name, (row) => row.state === name]),
    ["pending", "Not all tiered", (row) => row.pending > 0],
  ].map(([value, name, keeps]) => ({ value, name: `${name} (${count(counted(keeps))})`, keeps, any: value === "" || counted(keeps) }));
  const by = Object.fromEntries(kinds.map((kind) => [kind.value, kind.keeps]));
  const internal = partitions.some((row) => row.internal);
  return table({
    id: "partitions", title: "Partitions", rows: partitions, sort: [1, false], nothing: "There are no partitions.",
    key: (row) => row.full, last: (row) => row.internal,
    text: (row) => `${row.full} ${row.state} broker ${row.replicas.map((one) => one[0]).join(" ")}`,
    detail: partitionDetail,
    filters: [
      choice("state", "State of partitions", kinds.filter((kind) => kind.any).map((kind) => [kind.value, kind.name]), (row, chosen) => by[chosen](row)),
      ...(internal ? [tick("internal", "internal", (row) => !row.internal || row.level !== "ok")] : [])],
    columns: [
      { title: "Partition", value: (row) => row.topic * 1e7 + row.partition, cell: (row) => row.full },
      { title: "State", state: true, value: (row) => -RANK[row.level], cell: (row) => state(row.level, row.state, row.findings) },
      { title: "Leader", number: true, value: (row) => row.leader },
      { title: "Replicas", minor: true, value: (row) => row.replicas.length, cell: (row) => replicas(row) },
      { title: "Records", number: true, value: (row) => row.records, cell: (row) => count(row.records) },
      { title: "End", number: true, minor: true, value: (row) => row.log_end, cell: (row) => count(row.log_end) },
      { title: "Tiers", wide: true, value: (row) => row.pending, cell: (row) => spansBar(row) },
      { title: "Size", number: true, value: (row) => row.size, cell: (row) => bytes(row.size) },
    ],
  });
}

// In order of preference; replicas that are not in sync stand out.
function replicas(row) {
  return element("span", {}, row.replicas.flatMap(([broker, found], index) => [
    index ? " " : null,
    found === "leader" || found === "in sync" ? String(broker) : element("strong", { class: "warning", title: found }, String(broker))]));
}

function partitionDetail(row) {
  const spans = row.spans.map(([tier, start, end]) =>
    [content.tiers[tier], several(end - start, "record"), `${count(start)} to ${count(end)}, ${bytes(row.sizes[tier])}`]);
  const facts = [["epoch", row.epoch], ["log start", row.log_start], ["local start", row.local_start], ["high watermark", row.high_watermark],
    ["log end", row.log_end], ["remote", row.remote_start == null ? null : `${count(row.remote_start)} to ${count(row.remote_end)}`]];
  const columns = content.replica_columns;
  const cell = (value, index) => {
    const inside = index === 0 ? `broker ${value}` : columns[index] === "bytes" ? bytes(value) : typeof value === "number" ? count(value) : value == null ? "–" : value;
    return element("td", { class: index > 1 ? "number" : "", "data-title": columns[index].replace("_", " ") }, inside);
  };
  return [
    element("h3", {}, "Tiers, by offset"), spansBar(row, true), legend(spans),
    element("p", { class: "quiet" }, element("br"), facts.filter(([, value]) => value != null)
      .map(([name, value]) => `${name} ${typeof value === "number" ? count(value) : value}`).join(" · ")),
    element("h3", {}, "Replicas"),
    element("table", {},
      element("thead", {}, element("tr", {}, columns.map((name, index) =>
        element("th", { scope: "col", class: index > 1 ? "number" : "" }, name.replace("_", " "))))),
      element("tbody", {}, row.replicas.map((one) => element("tr", {}, one.map(cell))))),
    ...(row.findings.length ? [element("h3", {}, "Findings"), ...row.findings.map((number) => findingBox(content.health.findings[number], false))] : []),
    ...(content.live ? [recordsPanel(row)] : []),
  ];
}

// The partitions that a broker leads, beside the others.
function led(row) {
  const most = Math.max(1, ...content.brokers.map((one) => one.leads));
  return element("span", {}, count(row.leads),
    drawing(1000, 10, { class: "bar", "aria-hidden": "true" }, ["rect", { class: "cold", x: 0, y: 0, width: (row.leads / most) * 1000, height: 10 }]));
}

function brokersTable() {
  const votes = Object.fromEntries(content.voters.map((one) => [one.broker, one]));
  const level = (row) => (row.state === "ok" ? "ok" : row.state.startsWith("fenced") ? "warning" : "error");
  return table({
    id: "brokers", title: "Brokers", rows: content.brokers, sort: [0, false], nothing: "No broker is known.", key: (row) => String(row.broker),
    text: (row) => `broker ${row.broker} ${row.rack || ""} ${row.state} ${row.log_dir}`,
    columns: [
      { title: "Broker", value: (row) => row.broker, cell: (row) => `broker ${row.broker}` },
      { title: "State", value: (row) => -RANK[level(row)], cell: (row) => state(level(row), row.state === "ok" ? "in service" : row.state) },
      { title: "Rack", value: (row) => row.rack },
      { title: "Leads", number: true, value: (row) => row.leads, cell: (row) => led(row) },
      { title: "Replicas", number: true, value: (row) => row.replicas, cell: (row) => count(row.replicas) },
      { title: "Size", number: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { title: "Files", number: true, minor: true, value: (row) => row.files, cell: (row) => count(row.files) },
      { title: "Disk used", number: true, value: (row) => row.used_ratio, cell: (row) => (row.used_ratio == null ? "–" : `${(row.used_ratio * 100).toFixed(0)}%`) },
      { title: "Metadata", value: (row) => (votes[row.broker] ? votes[row.broker].state : null),
        cell: (row) => { const vote = votes[row.broker]; return !vote ? "–" : vote.state !== "votes" ? state("error", vote.state) : vote.behind ? `votes, ${count(vote.behind)} behind` : "votes"; } },
      { title: "Root", minor: true, long: true, value: (row) => row.log_dir, cell: (row) => element("span", { class: "mono" }, row.log_dir) },
    ],
  });
}

const groupKey = (row) => `${row.group} ${row.topic}`;

function groupsTable() {
  return table({
    id: "groups", title: "Groups", rows: content.groups, sort: [2, true], nothing: "No group has committed offsets.",
    key: groupKey, detail: groupDetail, text: groupKey,
    columns: [
      { title: "Group", value: (row) => row.group },
      { title: "Topic", value: (row) => row.topic },
      { title: "Lag", number: true, value: (row) => row.lag, cell: (row) => count(row.lag) },
      { title: "Last commit (UTC)", value: (row) => row.commit_ms, cell: (row) => utc(row.commit_ms) },
      { title: "Member epoch", number: true, minor: true, value: (row) => row.member_epoch },
    ],
  });
}

// The committed offsets of a group in one topic; those that are furthest behind come first.
function groupDetail(row) {
  const facts = [row.member_epoch == null ? "no member has committed" : `latest member epoch ${count(row.member_epoch)}`,
    `expires ${utc(row.expires_ms)} UTC`];
  if (!row.commits) return [element("p", {}, "Its partitions are not shown: the page has too many. Run stratalog groups describe.")];
  const commits = row.commits.map((one) => Object.fromEntries(content.commit_columns.map((name, index) => [name, one[index]])));
  commits.sort((a, b) => (b.lag ?? Infinity) - (a.lag ?? Infinity) || a.partition - b.partition);
  const more = commits.length - MOST_COMMITS;
  return [
    element("p", { class: "quiet" }, facts.join(" · ")),
    element("h3", {}, "Committed offsets"),
    plainTable(["Partition", "Committed", "End", "Lag", "Last commit (UTC)"], commits.slice(0, MOST_COMMITS).map((one) => {
      const name = `${row.topic}-${one.partition}`;
      return [rowsByName.has(name) ? link("partitions", () => only("partitions", name, [name]), name) : name,
        count(one.committed), count(one.high_watermark), count(one.lag), utc(one.commit_ms)];
    }), [1, 2, 3]),
    more > 0 ? element("p", { class: "quiet" }, `and ${count(more)} more, with less lag`) : null,
  ];
}

function topicDetail(topic) {
  const configs = Object.entries(content.configs).map(([name, [value, source]]) =>
    (name in topic.configs ? [name, topic.configs[name], "topic"] : [name, value, source]));
  const from = { topic: 0, cluster: 1, default: 2 };
  configs.sort((a, b) => from[a[2]] - from[b[2]] || (a[0] < b[0] ? -1 : 1));
  return [
    element("p", {}, link("partitions", () => ({ partitions: { q: `${topic.name}-`, internal: topic.internal } }), `Its ${several(topic.partitions, "partition")}`)),
    ...(content.live && topic.tiered ? [versionsPanel(topic)] : []),
    element("h3", {}, "Configs"),
    plainTable(["Config", "Value", "Source"], configs.map(([name, value, source]) =>
      [element("span", { class: "mono" }, name), element("span", { class: "mono" }, value || "(empty)"), source === "default" ? source : element("strong", {}, source)])),
  ];
}

function runsTable() {
  const level = (row) => (row.outcome === "failed" ? "error" : "ok");
  return table({
    id: "runs", title: "Last runs", rows: content.runs, sort: [0, true], nothing: noHistory(),
    key: (row) => `${row.run} ${row.time_ms}`,
    text: (row) => [row.operation, row.outcome, row.by, row.run, row.totals, row.notes].join(" "),
    columns: [
      { title: "Time (UTC)", value: (row) => row.time_ms, cell: (row) => utc(row.time_ms) },
      { title: "Operation", value: (row) => row.operation },
      { title: "Outcome", value: (row) => row.outcome, cell: (row) => state(level(row), row.outcome) },
      { title: "Took", number: true, value: (row) => row.duration_ms, cell: (row) => span(row.duration_ms) },
      { title: "By", value: (row) => row.by, cell: (row) => `${row.by}, ${row.run}` },
      { title: "Totals", minor: true, long: true, value: (row) => row.totals },
      { title: "Arguments and notes", long: true, value: (row) => row.notes },
    ],
  });
}

