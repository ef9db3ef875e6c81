// Helpers that all screens share: elements, requests to the server, number formats, tables.
//
// Text reaches the page only as text nodes: nothing here sets markup.

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export async function get(path, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of [value].flat()) if (one !== "" && one != null) words.append(name, one);
  }
  const text = words.toString();
  let answer;
  try {
    answer = await fetch(text ? `${path}?${text}` : path, { headers: { accept: "application/json" } });
  } catch {
    throw new Error("The dashboard does not answer. Is its command still running?");
  }
  const content = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (!answer.ok) throw new Error(content.error || `The server answered ${answer.status}.`);
  return content;
}

// --- number formats ----------------------------------------------------------------------------

export function count(number) {
  return number == null ? "" : Math.round(number).toLocaleString("en");
}

export function figure(number, digits = 3) {
  if (number == null || Number.isNaN(number)) return "";
  const size = Math.abs(number);
  if (size >= 10000) return number.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.floor(Math.log10(size)) + 1) });
  if (size && size < 0.001) return number.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return String(Number(number.toPrecision(size >= 1000 ? Math.max(4, digits) : digits)));
}

export function bytes(number) {
  if (number == null) return "";
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (Math.abs(number) >= size) return `${Number((number / size).toPrecision(3))} ${unit}`;
  }
  return `${number} B`;
}

export function duration(seconds) {
  if (seconds == null) return "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

// Cut a name in its middle: names often differ at the end.
export function cut(text, longest) {
  if (text.length <= longest) return text;
  const end = Math.floor(longest / 2);
  return `${text.slice(0, longest - end - 1)}…${text.slice(-end)}`;
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// --- parts -------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

export function drawing(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return element;
}

// A sparkline of the last values of a figure, which are at most `most` if that is given.
export function spark(values, most) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 26");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  if (values.length > 1) {
    const top = most ?? Math.max(...values), low = Math.min(0, ...values), span = top - low || 1;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", values.map((value, i) =>
      `${i ? "L" : "M"}${(100 * i / (values.length - 1)).toFixed(1)} ${(24 - 22 * (value - low) / span).toFixed(1)}`).join(""));
    svg.append(path);
  }
  return svg;
}

export function number(name, value, small, extra) {
  return h("div", { class: "figure" },
    h("dt", {}, name), h("dd", {}, value, small ? h("small", {}, small) : null, extra));
}

export function share(value, max, label) {
  return h("meter", { min: 0, max: max || 1, value, "aria-label": label });
}

// A table that reuses the elements of rows that stay, so that they keep focus and selection.
//
// Columns: {key, name, text(row), number, minor, link(row)}, or make(row) for an element that is
// made once per row, or draw(row) for one that is made each time; `sort(key)` is called when a header
// is clicked.  On a phone, a row is a card: each cell follows the name of its column.
export function table(columns, key, label, sort) {
  const heads = columns.map((column) => {
    const cell = sort && column.key
      ? h("button", { type: "button", onclick: () => sort(column.key) }, column.name)
      : column.name;
    return h("th", { scope: "col", class: classes(column) }, cell);
  });
  const body = h("tbody");
  const element = h("div", { class: sort ? "scroll cards" : "scroll" },
    h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads)), body));
  const known = new Map();
  const empty = h("tr", {}, h("td", { colspan: columns.length, class: "empty" }));

  function show(rows, order = "", nothing = "Nothing here.") {
    columns.forEach((column, i) => {
      const by = order.replace(/^-/, "") === column.key && column.key;
      if (by) heads[i].setAttribute("aria-sort", order.startsWith("-") ? "descending" : "ascending");
      else heads[i].removeAttribute("aria-sort");
    });
    const shown = rows.map((row) => {
      const id = key(row);
      let line = known.get(id);
      if (!line) {
        line = h("tr", {}, columns.map((column) => {
          const cell = h("td", { class: classes(column), "data-name": typeof column.name === "string" ? column.name : null });
          if (column.link) cell.append(h("a", { href: column.link(row) }));
          if (column.make) cell.append(column.make(row));
          return cell;
        }));
        known.set(id, line);
      }
      columns.forEach((column, i) => {
        if (column.make) return;
        if (column.draw) return line.cells[i].replaceChildren(column.draw(row));
        const cell = line.cells[i].firstElementChild || line.cells[i], made = column.text(row);
        const text = made == null ? "" : String(made);
        if (cell.textContent !== text) cell.textContent = text;
        if (column.title) line.cells[i].title = text;
        if (column.tone) line.cells[i].className = `${classes(column)} ${column.tone(row)}`;
      });
      return line;
    });
    const ids = new Set(rows.map(key));
    for (const id of known.keys()) if (!ids.has(id)) known.delete(id);
    if (!rows.length) {
      empty.firstElementChild.textContent = nothing;
      shown.push(empty);
    }
    // Move only the rows whose place has changed.
    shown.forEach((line, i) => {
      if (body.children[i] !== line) body.insertBefore(line, body.children[i] || null);
    });
    while (body.children.length > shown.length) body.lastElementChild.remove();
  }
  return { element, show };
}

function classes(column) {
  return [column.number && "number", column.minor && "minor", column.name_ && "name"].filter(Boolean).join(" ");
}

// Call `look` now and every `seconds` while the page is visible; return a function that stops it.
export function repeat(look, seconds) {
  let timer = 0, ended = false;
  async function turn() {
    clearTimeout(timer);
    if (ended || document.hidden) return;
    await look();
    clearTimeout(timer); // of another turn, if the page was hidden and shown meanwhile
    if (!ended) timer = setTimeout(turn, seconds * 1000);
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", turn);
  };
}

export function address(screen, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of [value].flat()) if (one !== "" && one != null && one !== 0) words.append(name, one);
  }
  const text = words.toString();
  return `#/${screen}${text ? `?${text}` : ""}`;
}

// Change the query of this screen's address without a new history entry.
export function remember(screen, query) {
  history.replaceState(null, "", address(screen, query));
}
