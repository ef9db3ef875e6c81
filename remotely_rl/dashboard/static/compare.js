// The comparison of runs: a curve by group, the groups' last values, and the settings in which the
// runs differ, in a table and, if they are a sweep, in a picture.

import { STEPS, axisChoice, colourOf, curveChart, labels, swatch, uplot } from "/static/curves.js";
import { count, cut, figure, get, h, plural, remember, repeat } from "/static/ui.js";

const EVERY_S = 15;
const RETURN = "rollout/return_mean";
const MAX_AXES = 8; // of settings for which the picture of a sweep has room
const FEWEST = 3; // runs that make a picture

export const runAddress = (name) => `#/runs/${name.split("/").map(encodeURIComponent).join("/")}`;
const last = (asked, name, otherwise) => asked.get(name) || otherwise;

export function showCompare(params, asked) {
  const query = {
    run: asked.getAll("run"), over: last(asked, "over", STEPS), column: last(asked, "column", RETURN), by: last(asked, "by", ""),
    smooth: last(asked, "smooth", "0"), band: last(asked, "band", "interval"), logx: last(asked, "logx", ""), logy: last(asked, "logy", ""),
    axis: asked.getAll("axis"),
  };
  const status = h("p", { class: "soft", role: "status" }), groups = h("tbody"), place = h("div");
  const sweep = h("div"), settings = settingsTable((axes) => change("axis", axes));
  const known = h("datalist", { id: "columns" }), by = h("select", { onchange: () => change("by", by.value) });
  const column = h("input", { type: "search", list: "columns", value: query.column, "aria-label": "Column", onchange: () => change("column", column.value.trim() || RETURN) });
  const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: query.smooth, onchange: () => change("smooth", smooth.value) });
  const opened = new Set(); // groups whose runs are shown
  let shown = null;

  function change(name, value) {
    query[name] = value;
    again();
  }
  function box(name, label) {
    const input = h("input", { type: "checkbox", checked: Boolean(query[name]), onchange: () => change(name, input.checked ? "1" : "") });
    return h("label", {}, input, ` ${label}`);
  }
  const band = h("select", { onchange: () => change("band", band.value) },
    ["interval", "range"].map((each) => h("option", { value: each, selected: each === query.band }, each === "interval" ? "95 % interval" : "range")));

  function again() {
    shown?.close();
    shown = curveChart(query.column, query.over, { wide: true, log: { x: query.logx, y: query.logy } });
    place.replaceChildren(shown.element);
    remember("compare", {
      ...query, over: query.over === STEPS ? "" : query.over, column: query.column === RETURN ? "" : query.column,
      smooth: Number(query.smooth) || "", band: query.band === "interval" ? "" : query.band,
    });
    look();
  }

  async function look() {
    if (!query.run.length) {
      status.textContent = "Choose runs in the list of runs, and then Compare.";
      return;
    }
    const { logx, logy, axis, ...wanted } = query;
    try {
      const found = await get("/api/compare", wanted);
      const uPlot = await uplot(), lines = [], tables = [];
      found.groups.forEach((group, colour) => {
        if (group.band) {
          const at = lines.length + 1;
          tables.push([group.band.x, group.band.mean, group.band.low, group.band.high]);
          lines.push({ label: group.label, colour, fill: [at + 2, at + 1] }, { colour, width: 0 }, { colour, width: 0 });
        }
        group.lines.forEach((line, k) => {
          tables.push([line.x, line.y]);
          lines.push({ label: group.band || k ? "" : group.label, colour, width: group.band ? 0.6 : 1.4 });
        });
      });
      showGroups(found.groups);
      showChoices(found);
      const axes = axesOf(found, query.axis);
      showSweep(sweep, found, axes, query.column);
      settings.show(found, axes);
      status.textContent = found.missing || (found.left_out.length ? `Nothing to draw yet: ${found.left_out.join(", ")}` : "");
      if (tables.length) await shown.draw(uPlot.join(tables), lines.map((line) => (found.groups.length > 9 ? { ...line, label: "" } : line)));
    } catch (error) {
      status.textContent = error.message;
    }
  }

  // The groups, the highest last value first.
  function showGroups(found) {
    const order = found.map((group, i) => [group, i]).sort(([a], [b]) => b.last.mean - a.last.mean);
    groups.replaceChildren(...order.map(([group, i]) => h("tr", {},
      h("td", { class: "name wrap" }, swatch(i), group.label, runsOf(group)),
      h("td", { class: "number" }, figure(group.last.mean, 4), group.last.at == null ? "" : h("div", { class: "soft" }, `at ${figure(group.last.at, 4)}, where the shortest ends`)),
      h("td", { class: "number" }, group.last.interval ? group.last.interval.map((end) => figure(end, 4)).join(" to ") : group.last.spread))));
  }

  // The links to a group's runs, folded if there are several.
  function runsOf(group) {
    const links = group.lines.flatMap((line, k) => [k ? ", " : "", h("a", { href: runAddress(line.run) }, line.run)]);
    if (group.lines.length === 1) return h("div", { class: "soft" }, links);
    const kind = !group.band ? "" : `mean and ${group.band.is_interval ? "95 % interval" : "range"} of `;
    return h("details", { class: "soft", open: opened.has(group.label), ontoggle: (event) => (event.target.open ? opened.add(group.label) : opened.delete(group.label)) },
      h("summary", {}, `${kind}${group.lines.length} runs`), links);
  }

  function showChoices(found) {
    if (known.childElementCount !== found.columns.length) known.replaceChildren(...found.columns.map((each) => h("option", { value: each })));
    const names = [...new Set(["", ...found.axes, query.by])];
    if (by.childElementCount !== names.length) {
      by.replaceChildren(...names.map((each) => h("option", { value: each, selected: each === query.by }, each || "all settings")));
    }
  }

  again();
  const stop = repeat(look, EVERY_S);
  const element = h("div", {}, h("h1", {}, "Runs compared"), status,
    h("div", { class: "tools" }, h("label", {}, "show ", column), known, axisChoice(query.over, (axis) => change("over", axis)),
      h("label", {}, "group by ", by), h("label", {}, "band ", band), h("label", {}, "smooth ", smooth), box("logx", "log x"), box("logy", "log y")),
    place, h("div", { class: "scroll" }, h("table", { "aria-label": "Groups" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Group"), h("th", { scope: "col", class: "number" }, "Last value"), h("th", { scope: "col", class: "number" }, "95 % interval"))), groups)),
    sweep, settings.element);
  return { title: "Runs compared", element, close: () => (stop(), shown?.close()) };
}

// --- settings ----------------------------------------------------------------------------------

// A setting as its user writes it.
export const settingText = (value) => (value == null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

// The axes of the picture: those that are wanted, or else the first; none for too few runs.
function axesOf(found, wanted) {
  if (found.groups.flatMap((group) => group.lines).length < FEWEST) return [];
  const chosen = found.axes.filter((name) => wanted.includes(name));
  return (chosen.length ? chosen : found.axes).slice(0, MAX_AXES);
}

// The table of all settings in which the runs differ: the values of each, and the runs that have
// them.  If there is a picture, a box for each setting that can be an axis of it: `choose(axes)`.
function settingsTable(choose) {
  const element = h("section");
  let drawn = [], boxes = [], state = "";

  function show(found, axes) {
    drawn = axes;
    const now = JSON.stringify([found.settings, found.axes, axes.length > 0]);
    if (now !== state) {
      state = now;
      make(found, axes.length > 0);
    }
    boxes.forEach(([name, box]) => {
      box.checked = drawn.includes(name);
      box.disabled = !box.checked && drawn.length >= MAX_AXES;
    });
  }

  function make({ settings, axes }, isPicture) {
    boxes = isPicture ? axes.map((name) => [name, h("input", { type: "checkbox", "aria-label": `Draw ${name}`,
      onchange: (event) => choose(axes.filter((each) => (each === name ? event.target.checked : drawn.includes(each)))) })]) : [];
    const box = Object.fromEntries(boxes), names = Object.keys(settings);
    const heads = [isPicture && "Drawn", "Setting", "Values"].filter(Boolean).map((head) => h("th", { scope: "col" }, head));
    const rows = names.map((name) => h("tr", {}, isPicture && h("td", {}, box[name]), h("td", {}, name), h("td", { class: "wrap" }, valuesOf(settings[name]))));
    const table = h("table", { "aria-label": "Settings that differ" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
    element.replaceChildren(...(names.length ? [h("h2", {}, "Settings that differ"), h("div", { class: "scroll" }, table)] : []));
  }
  return { element, show };
}

// The values of a setting in order, each with its run, or the number of its runs.
function valuesOf(byRun) {
  const runs = new Map();
  for (const [run, value] of Object.entries(byRun)) {
    const shown = settingText(value);
    runs.set(shown, [...(runs.get(shown) || []), run]);
  }
  const order = [...runs].sort(([a], [b]) => Number(a) - Number(b) || a.localeCompare(b));
  return order.flatMap(([value, its], i) => [i ? ", " : "", value, h("span", { class: "soft", title: its.join(", ") }, ` (${its.length > 1 ? plural(its.length, "run") : its[0]})`)]);
}


const WIDTH = 1000, HEIGHT = 240, TOP = 34, BOTTOM = 18, SIDE = 70;

function svg(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text != null) element.textContent = text;
  return element;
}

// Parallel coordinates: an axis for each setting of `names`, the last for the value that the runs
// reached; a line for each run.
function showSweep(place, found, names, column) {
  const runs = [];
  found.groups.forEach((group, colour) => group.lines.forEach((line) => runs.push({ run: line.run, colour, value: line.y.at(-1) })));
  if (!names.length) {
    place.replaceChildren();
    return;
  }
  const axes = [...names.map((name) => axisOf(name, runs.map(({ run }) => found.settings[name][run]))), axisOf(column, runs.map(({ value }) => value))];
  const x = (i) => SIDE + (i * (WIDTH - 2 * SIDE)) / (axes.length - 1);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "sweep", role: "img", "aria-label": `${runs.length} runs by ${names.join(", ")} and ${column}` });
  runs.forEach(({ run, colour, value }, k) => {
    const points = axes.map((axis, i) => `${x(i).toFixed(1)},${axis.places[k].toFixed(1)}`).join(" ");
    const line = svg("polyline", { points, stroke: colourOf(colour), class: "line" });
    line.append(svg("title", {}, `${run}: ${names.map((name) => `${name}=${settingText(found.settings[name][run])}`).join(", ")}; ${figure(value, 4)}`));
    picture.append(line);
  });
  axes.forEach((axis, i) => {
    picture.append(svg("line", { x1: x(i), x2: x(i), y1: TOP, y2: HEIGHT - BOTTOM, class: "axis" }),
      svg("text", { x: x(i), y: 12, class: "head" }, axis.name),
      ...axis.ticks.map(([label, at]) => svg("text", { x: x(i) + 5, y: at + 4 }, label)));
  });
  const others = found.axes.length - names.length;
  place.replaceChildren(h("h2", {}, "Settings of these runs, and the last value"),
    others ? h("p", { class: "soft" }, `${plural(names.length, "setting")} drawn, ${count(others)} more differ. The picture has room for ${MAX_AXES}: choose them in the table below.`) : "",
    h("div", { class: "scroll" }, picture));
}

const TICK_ROOM = 13; // between the labels of an axis
const TICK_CHARACTERS = 8; // of a name, for each digit that a number has

function axisOf(name, values) {
  const low = TOP, high = HEIGHT - BOTTOM, place = (share) => high - share * (high - low);
  if (values.every((value) => typeof value === "number")) {
    const min = Math.min(...values), max = Math.max(...values), isLog = min > 0 && max > 20 * min;
    const scale = isLog ? Math.log : (value) => value, span = scale(max) - scale(min) || 1;
    const at = (value) => place((scale(value) - scale(min)) / span);
    const all = [...new Set(values)].sort((a, b) => a - b);
    return { name, places: values.map(at), ticks: ticksOf(all.length <= 6 ? all : [min, max], at, figure) };
  }
  const kinds = [...new Set(values.map(settingText))].sort();
  const at = (kind) => place(kinds.length > 1 ? kinds.indexOf(kind) / (kinds.length - 1) : 0.5);
  return { name, places: values.map((value) => at(settingText(value))), ticks: ticksOf(kinds, at, (kind, digits) => cut(kind, TICK_CHARACTERS * digits)) };
}

// The ticks that have room, upwards, each with its label.
function ticksOf(all, at, label) {
  const shown = [];
  for (const each of all) if (!shown.length || at(shown.at(-1)) - at(each) > TICK_ROOM) shown.push(each);
  const texts = labels(shown, label);
  return shown.map((each, i) => [texts[i], at(each)]);
}
