// ------------------------------------------------------------------------------------------------ the view

// What the reader has chosen, by part of the page: filters, the order, open rows. The address contains
// this, so a link shows the same view: #partitions?partitions.q=flights&partitions.open=flights-2
let view = {};
let at = ""; // the part that the address names

const PARTS = ["health", "samples", "activity", "tiers", "topics", "partitions", "brokers", "groups", "runs"];
const chosen = (id) => (view[id] ||= Object.create(null));

function address(part, changes = {}) {
  const parameters = new URLSearchParams();
  for (const [id, given] of Object.entries({ ...view, ...changes })) {
    for (const [name, value] of Object.entries(given)) {
      for (const one of value instanceof Set ? value : [value]) {
        if (one !== "" && one != null && one !== false) parameters.append(`${id}.${name}`, one === true ? "1" : one);
      }
    }
  }
  const query = parameters.toString();
  return query ? `#${part}?${query}` : part ? `#${part}` : "#";
}

function readAddress() {
  const [part, query = ""] = location.hash.slice(1).split("?");
  view = {};
  at = PARTS.includes(part) ? part : "";
  for (const [name, value] of new URLSearchParams(query)) {
    const [id, what] = name.split(".");
    if (!PARTS.includes(id) || !/^[a-z]+$/.test(what || "")) continue;
    if (what === "open") (chosen(id).open ||= new Set()).add(value);
    else chosen(id)[what] = value;
  }
}

// A notebook's frame has no address of its own: the choices are kept there, but not shown.
function write(how, hash) {
  try {
    history[how](null, "", hash);
  } catch {
    // as above
  }
}

// The reader has changed something: update the address, without a step back for each letter.
function remember(part) {
  at = part;
  write("replaceState", address(at));
}

// A link within the page. Back leads to where the reader was.
function link(part, changes, ...children) {
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    write("pushState", address(part, changes()));
    Object.assign(view, changes());
    at = part;
    drawAll();
    reach();
  };
  return element("a", { href: address(part, changes()), onclick: follow }, ...children);
}

// Scroll to the part of the address, or to the row that it has opened, and put the focus there.
function reach() {
  const section = document.getElementById(at);
  if (!section) return;
  const opened = [...(view[at]?.open || [])];
  const row = section.querySelector("[aria-expanded=true]");
  section.scrollIntoView();
  if (opened.length && row) row.focus({ preventScroll: true });
  else section.querySelector("h2")?.focus({ preventScroll: true });
}
