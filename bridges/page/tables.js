// ------------------------------------------------------------------------------------------------ tables

// A table with a window of its rows. Columns: {title, value(row), cell(row)}, and classes. A row has a name, its
// `key`. A row for which `detail` returns something opens at its first cell. Rows that are `last` come after all
// others, unless the table is sorted by numbers.
function table({ id, title, rows, columns, sort, text, key, detail, filters = [], nothing, last = () => false }) {
  const mine = chosen(id);
  const [number, way] = (mine.sort || "").split("-");
  let by = columns[number] ? Number(number) : sort[0], down = columns[number] ? way === "down" : sort[1];
  let first = Number(mine.from) || 0, words = [], found = rows;
  const opened = (mine.open ||= new Set());
  const body = element("tbody");
  const heads = columns.map((column, index) =>
    element("th", { scope: "col", class: classes(column) },
      element("button", { type: "button", "data-focus": `${id} sort ${index}`, onclick: () => sortBy(index, by === index ? !down : Boolean(column.number)) },
        column.title)));
  const where = element("span", { role: "status" });
  const back = element("button", { type: "button", "data-focus": `${id} back`, onclick: () => go(first - PAGE) }, "Previous");
  const on = element("button", { type: "button", "data-focus": `${id} on`, onclick: () => go(first + PAGE) }, "Next");
  const search = element("input", {
    type: "search", placeholder: "Filter", "aria-label": `Filter ${title.toLowerCase()}`, "data-focus": `${id} q`,
    value: mine.q || "", oninput: () => { mine.q = search.value; again(); } });
  const sorts = element("select", {
    "aria-label": `Sort ${title.toLowerCase()}`, "data-focus": `${id} sorts`,
    onchange: () => { const [index, to] = sorts.value.split(" "); sortBy(Number(index), to === "down"); } },
    columns.flatMap((column, index) => ["up", "down"].map((to) =>
      element("option", { value: `${index} ${to}` }, `${column.title} ${to === "up" ? "↑" : "↓"}`))));

  function classes(column) {
    return ["number", "minor", "wide", "long", "state"].filter((name) => column[name]).join(" ");
  }

  function sortBy(index, isDown) {
    [by, down] = [index, isDown];
    mine.sort = `${by}-${down ? "down" : "up"}`;
    again();
  }

  function again() {
    first = 0;
    delete mine.from;
    arrange();
    remember(id);
  }

  function arrange() {
    const { value } = columns[by];
    words = (mine.q || "").toLowerCase().split(/\s+/).filter(Boolean);
    found = rows.filter((row) => filters.every((one) => one.keeps(row)));
    if (words.length) {
      found = found.filter((row) => { const line = text(row).toLowerCase(); return words.every((one) => line.includes(one)); });
    }
    const keyed = found.map((row, index) => [value(row), index, row, columns[by].number ? false : last(row)]);
    keyed.sort(([a, i, , c], [b, j, , d]) =>
      c - d || (a == null) - (b == null) || (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1) || i - j);
    found = keyed.map(([, , row]) => row);
    heads.forEach((head, index) => {
      if (index === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    sorts.value = `${by} ${down ? "down" : "up"}`;
    if (first >= found.length) first = 0;
    draw();
  }

  function go(index) {
    first = index;
    mine.from = first || "";
    draw();
    remember(id);
    section.scrollIntoView();
  }

  function draw() {
    body.replaceChildren(...found.slice(first, first + PAGE).flatMap(lines));
    if (!found.length) body.append(element("tr", {}, element("td", { colspan: columns.length, class: "empty" }, "No row matches.")));
    const end = Math.min(first + PAGE, found.length);
    where.textContent = found.length ? `${count(first + 1)}–${count(end)} of ${count(found.length)}` : "0 rows";
    back.disabled = first === 0;
    on.disabled = end >= found.length;
    back.hidden = on.hidden = found.length <= PAGE;
    pager.hidden = back.hidden && !words.length;
  }

  function lines(row) {
    const isOpen = Boolean(detail) && opened.has(key(row));
    const cells = columns.map((column, index) => {
      let inside = column.cell ? column.cell(row) : column.value(row);
      if (detail && index === 0) {
        inside = element("button", {
          type: "button", class: "open", "aria-expanded": String(isOpen), "data-focus": `${id} open ${key(row)}`,
          onclick: () => turn(row) }, inside);
      }
      return element("td", { class: classes(column), "data-title": column.title }, inside == null ? "–" : inside);
    });
    const line = element("tr", {}, cells);
    if (!isOpen) return [line];
    return [line, element("tr", { class: "detail" }, element("td", { colspan: columns.length }, detail(row)))];
  }

  function turn(row) {
    const index = found.indexOf(row) - first;
    if (!opened.delete(key(row))) opened.add(key(row));
    draw();
    remember(id);
    body.querySelectorAll(".open")[index].focus();
  }

  const pager = element("div", { class: "pager" }, where, back, on);
  const tools = [
    ...filters.map((one) => one.control(mine, id, again)),
    element("label", { class: "sorts" }, sorts),
    rows.length > 5 || mine.q ? element("label", {}, search) : null];
  const sheet = rows.length
    ? [element("table", {}, element("thead", {}, element("tr", {}, heads)), body), pager]
    : [element("p", { class: "empty" }, nothing)];
  const section = element("section", { id },
    element("div", { class: "head" }, heading(title), rows.length ? tools : null),
    element("div", { class: "sheet" }, sheet));
  filters.forEach((one) => one.take(mine));
  if (rows.length) arrange();
  return section;
}

// A link puts the focus on the heading of its part.
const heading = (title) => element("h2", { tabindex: -1 }, title);

function choice(name, label, options, keeps) {
  let now = options[0][0];
  return {
    take: (mine) => { if (options.some(([value]) => value === mine[name])) now = mine[name]; },
    keeps: (row) => keeps(row, now),
    control: (mine, id, changed) => {
      const list = element("select", {
        "aria-label": label, "data-focus": `${id} ${name}`,
        onchange: () => { now = mine[name] = list.value; changed(); } },
        options.map(([value, title]) => element("option", { value, selected: value === mine[name] }, title)));
      return element("label", {}, list);
    },
  };
}

function tick(name, label, keeps) {
  let on = false;
  return {
    take: (mine) => { on = mine[name] === "1" || mine[name] === true; },
    keeps: (row) => on || keeps(row),
    control: (mine, id, changed) => element("label", {},
      element("input", {
        type: "checkbox", checked: Boolean(mine[name]), "data-focus": `${id} ${name}`,
        onchange: (event) => { on = event.target.checked; mine[name] = on; changed(); } }), label),
  };
}
