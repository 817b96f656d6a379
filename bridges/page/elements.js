"use strict";
// Draws the content of the page. Names in it come from other people, so all of it becomes text, never HTML.

let content = JSON.parse(document.getElementById("content").textContent);
const PAGE = 50; // rows of a table that are in the document at once
const SOME = 12; // subjects of a finding that are shown at first
const MOST_COMMITS = 200; // rows of a group's partitions
const RANK = { error: 3, warning: 2, info: 1, ok: 0 };
const OF_STATE = {
  "offline": "error", "under min ISR": "error", "under-replicated": "warning", "reassigning": "info", "in sync": "ok",
};
const TIERS = {
  cold: ["Cold", "only in the remote tier"],
  both: ["Both", "in the remote tier, and still on brokers"],
  pending: ["Pending", "only on brokers, to be tiered"],
  hot: ["Hot", "only on brokers, not to be tiered"],
  expired: ["Expired", "no longer in the log, not deleted yet"],
};

// ------------------------------------------------------------------------------------------------ elements

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

function drawing(width, height, attributes, ...shapes) {
  const shape = ([tag, given]) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
    return made;
  };
  const made = shape(["svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", ...attributes }]);
  made.append(...shapes.map(shape));
  return made;
}

// ------------------------------------------------------------------------------------------------ texts

const whole = new Intl.NumberFormat("en-US");
const count = (value) => (value == null ? "–" : whole.format(value));
const several = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

function bytes(value) {
  if (value == null) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 5) { value /= 1024; unit += 1; }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

function span(ms) {
  if (ms == null) return "–";
  for (const [unit, length] of [["d", 86400e3], ["h", 3600e3], ["min", 60e3]]) {
    if (ms >= 2 * length || ms === length) return `${count(Math.floor(ms / length))} ${unit}`;
  }
  return ms >= 1000 ? `${Math.round(ms / 1000)} s` : `${count(Math.round(ms))} ms`;
}

const utc = (ms) => new Date(ms).toISOString().slice(0, 16).replace("T", " ");
const percent = (value) => (value == null ? "–" : `${(value * 100).toFixed(0)}%`);
const shown = (value, unit) => (unit === "bytes" ? bytes(value) : unit === "ratio" ? percent(value) : count(value));

// A table of a detail: no order and no filter of its own. `numbers` are the indexes of columns of numbers.
function plainTable(titles, rows, numbers = []) {
  const kind = (index) => (numbers.includes(index) ? "number" : "");
  return element("table", {},
    element("thead", {}, element("tr", {}, titles.map((title, index) => element("th", { scope: "col", class: kind(index) }, title)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell, index) =>
      element("td", { class: kind(index), "data-title": titles[index] }, cell == null ? "–" : cell))))));
}
