// The training screens: the list of runs, one run, and comparisons.

import { paged } from "/static/paged.js";
import { address, count, duration, figure, get, h, remember, repeat } from "/static/ui.js";

const STEPS = "time/env_steps", SECONDS = "time/seconds";
const EVERY_S = 5;

// The charts of a run, in this order; each other column has its own chart.
const CURVES = [
  { title: "Return", columns: ["rollout/return_mean", "rollout/return_interval", "rollout/return_max"], wide: true },
  { title: "Steps per second", columns: ["time/steps_per_second"] },
  { title: "Policy loss", columns: ["train/policy_loss"] },
  { title: "Value loss", columns: ["train/value_loss"] },
  { title: "Entropy", columns: ["train/entropy"] },
  { title: "KL", columns: ["train/approx_kl"] },
  { title: "Staleness", columns: ["train/staleness_min", "train/staleness_mean", "train/staleness_max"] },
  { title: "Seconds of an interval", columns: ["time/environment_s", "time/inference_s", "time/learning_s", "time/waiting_s", "time/idle_s"] },
  { title: "Episode length", columns: ["rollout/episode_length_mean"] },
  { title: "Learning rate", columns: ["train/learning_rate"] },
];
const NOT_SHOWN = new Set([STEPS, SECONDS, "time/updates", "rollout/episodes"]);

const COLOURS = {
  light: ["#2b6f5e", "#b5632b", "#4a62a8", "#8d4a86", "#7a7320", "#3d7f9c", "#a3382a", "#5c5f63"],
  dark: ["#7cc4ae", "#e0a070", "#93a9e6", "#d097ca", "#c9c070", "#84c1dc", "#f0907f", "#a9aeb4"],
};
const colours = () => COLOURS[document.documentElement.dataset.theme] || COLOURS.light;
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (column) => column.replace(/^[^/]*\//, "").replaceAll("_", " ");

let library = null;
function uplot() {
  library ??= new Promise((done, failed) => {
    document.head.append(h("link", { rel: "stylesheet", href: "/static/uPlot.min.css" }));
    const script = h("script", { src: "/static/uPlot.iife.min.js", onload: () => done(window.uPlot), onerror: () => failed(new Error("uPlot did not load")) });
    document.head.append(script);
  });
  return library;
}

// --- one chart ---------------------------------------------------------------------------------

// `draw(data, lines)`: data in the format of uPlot, lines {label, fill: [high, low] or undefined}.
function curveChart(title, over, wide) {
  const plot = h("div", { class: "plot" }), newest = h("output", {});
  const element = h("figure", { class: `curve${wide ? " wide" : ""}`, role: "group", "aria-label": title },
    h("figcaption", {}, title, newest), plot);
  let chart = null, last = null;

  async function draw(data, lines) {
    last = [data, lines];
    const uPlot = await uplot();
    caption(lines, (i) => data[i + 1].findLast((value) => value != null));
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${title}: ${newest.textContent || "no value yet"}`);
    if (chart && chart.series.length === data.length) {
      chart.setData(data);
      return;
    }
    make(uPlot);
  }

  function make(uPlot) {
    chart?.destroy();
    const [data, lines] = last, chosen = colours(), soft = variable("--soft"), rule = variable("--rule");
    const axis = { stroke: soft, grid: { stroke: rule, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif", gap: 4 };
    const bands = [], series = [{ label: over === STEPS ? "steps" : "time" }];
    lines.forEach((line, i) => {
      const colour = chosen[(line.colour ?? i) % chosen.length];
      series.push({
        label: line.label || "", stroke: line.width === 0 ? "transparent" : line.width < 1 ? `${colour}99` : colour, width: line.width ?? 1.4, spanGaps: true,
        points: { show: Boolean(line.label) && data[0].length < 30, size: 4 },
      });
      if (line.fill) bands.push({ series: line.fill, fill: `${colour}2e` });
    });
    chart = new uPlot({
      width: plot.clientWidth || 340, height: plot.clientHeight || 190,
      series, bands, legend: { show: false }, cursor: { y: false, points: { size: 5 } },
      scales: { x: { time: false } },
      axes: [
        { ...axis, size: 28, space: 70, values: (_, ticks) => ticks.map((tick) => over === STEPS ? steps(tick) : duration(tick)) },
        { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => figure(tick)) },
      ],
      hooks: { setCursor: [(u) => say(u, lines)] },
    }, data, plot);
  }

  function say(u, lines) {
    const at = u.cursor.idx;
    if (at == null || u.cursor.left < 0) return;
    const x = u.data[0][at];
    caption(lines, (i) => u.data[i + 1][at], `at ${over === STEPS ? steps(x) : duration(x)}: `);
  }

  function caption(lines, value, where = "") {
    const several = lines.filter((line) => line.label).length > 1, parts = [where];
    lines.forEach((line, i) => {
      const known = value(i);
      if (!line.label || known == null) return;
      if (parts.length > 1) parts.push("  ");
      if (several) parts.push(swatch(line.colour ?? i), `${line.label} `);
      parts.push(figure(known));
    });
    newest.replaceChildren(...parts);
  }

  const size = new ResizeObserver(() => chart?.setSize({ width: plot.clientWidth, height: plot.clientHeight }));
  size.observe(plot);
  const repaint = () => last && uplot().then(make);
  document.addEventListener("painted", repaint);
  function close() {
    size.disconnect();
    document.removeEventListener("painted", repaint);
    chart?.destroy();
  }
  return { element, draw, close };
}

// A swatch of a line's colour, shown before its name.
function swatch(i) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  svg.setAttribute("class", "key");
  svg.setAttribute("aria-hidden", "true");
  for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", colours()[i % 8]]]) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function steps(number) {
  if (number >= 1e6) return `${figure(number / 1e6)} M`;
  return number >= 1e3 ? `${figure(number / 1e3)} k` : figure(number);
}

function axisChoice(over, choose) {
  const select = h("select", { onchange: () => choose(select.value) },
    h("option", { value: STEPS, selected: over === STEPS }, "steps"),
    h("option", { value: SECONDS, selected: over === SECONDS }, "time"));
  return h("label", {}, "over ", select);
}

// --- runs --------------------------------------------------------------------------------------

const tone = (row) => ({ trains: "", failed: "bad", killed: "bad", stopped: "wait" })[row.state] ?? "soft";
const ending = (row) => row.state === "trains" ? "trains now" : [row.state, row.why].filter(Boolean).join(": ");
const runAddress = (name) => `#/runs/${name.split("/").map(encodeURIComponent).join("/")}`;
const chosen = new Set();

function showRuns(params, asked) {
  const folder = h("p", { class: "soft" });
  const compare = h("button", { type: "button", onclick: () => { location.hash = address("compare", { run: [...chosen] }); } });

  function choice(row) {
    return h("input", { type: "checkbox", checked: chosen.has(row.name), "aria-label": `Compare ${row.name}`,
      onchange: (event) => { event.target.checked ? chosen.add(row.name) : chosen.delete(row.name); updateButton(); } });
  }
  function updateButton() {
    compare.disabled = chosen.size < 1;
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  }
  updateButton();
  return paged("Runs", {
    path: "runs", sort: "-updated", key: (row) => row.name, nothing: "No run is here yet: remotely-rl train ppo makes one.",
    renew: (look) => repeat(look, EVERY_S), head: folder, tools: compare, heard: (page) => { folder.textContent = page.folder; },
    columns: [
      { name: h("span", { class: "unseen" }, "Compare"), make: choice },
      { key: "name", name: "Run", text: (row) => row.name, link: (row) => runAddress(row.name), name_: true },
      { key: "algorithm", name: "Algorithm", text: (row) => row.algorithm, minor: true },
      { key: "env", name: "Environment", text: (row) => row.env, minor: true, name_: true },
      { key: "seed", name: "Seed", text: (row) => row.seed, number: true, minor: true },
      { key: "state", name: "State", text: (row) => row.state, minor: true, tone },
      { key: "steps", name: "Steps", text: (row) => count(row.steps), number: true },
      { key: "steps_per_s", name: "Steps/s", text: (row) => count(row.steps_per_s), number: true, minor: true },
      { key: "return_mean", name: "Return", text: (row) => figure(row.return_mean), number: true },
      { key: "return_max", name: "Max", text: (row) => figure(row.return_max), number: true, minor: true },
      { key: "seconds", name: "Time", text: (row) => duration(row.seconds), number: true, minor: true },
      { key: "updated", name: "Last row", text: (row) => `${duration(Date.now() / 1000 - row.updated)} ago`, number: true },
    ],
  })(params, asked);
}

// --- one run -----------------------------------------------------------------------------------

function showRun(params, asked) {
  const name = params.name, path = `/api/runs/${name.split("/").map(encodeURIComponent).join("/")}`;
  let over = asked.get("over") === SECONDS ? SECONDS : STEPS;
  const under = h("p", { class: "soft" }, "…"), curves = h("div"), settings = h("dl", { class: "facts" });
  const latest = h("dl", { class: "facts" }), videos = h("div"), started = h("dl", { class: "facts" });
  const crashes = h("section");
  const state = h("p", { role: "status" }), goOn = h("p", { class: "soft" });
  let charts = [], series = null, shownState = "", from = { file: "", from_byte: 0 };

  function choose(axis) {
    over = axis;
    remember(`runs/${name.split("/").map(encodeURIComponent).join("/")}`, { over: over === STEPS ? "" : over });
    charts.forEach((each) => each.close());
    charts = [];
    draw();
  }

  function layout() {
    const there = Object.keys(series).filter((column) => series[column].some((value) => value != null));
    const known = new Set(CURVES.flatMap((curve) => curve.columns));
    const others = there.filter((column) => !known.has(column) && !NOT_SHOWN.has(column));
    const all = [...CURVES, ...others.map((column) => ({ title: short(column), columns: [column] }))]
      .map((curve) => ({ ...curve, columns: curve.columns.filter((column) => there.includes(column)) }))
      .filter((curve) => curve.columns.length);
    charts = all.map((curve) => ({ ...curveChart(curve.title, over, curve.wide), columns: curve.columns }));
    const [wide, rest] = [0, 1].map((i) => charts.filter((_, k) => Boolean(all[k].wide) === !i));
    curves.replaceChildren(...wide.map((each) => each.element), h("div", { class: "curves" }, rest.map((each) => each.element)));
  }

  function draw() {
    if (!series) return;
    const filled = Object.values(series).filter((values) => values.some((value) => value != null)).length;
    if (!charts.length || layout.filled !== filled) {
      charts.forEach((each) => each.close());
      layout();
      layout.filled = filled;
    }
    for (const each of charts) {
      each.draw([series[over], ...each.columns.map((column) => series[column])], each.columns.map((column) => ({ label: short(column) })));
    }
  }

  async function look() {
    try {
      const piece = await get(`${path}/metrics`, { points: 600, ...from });
      from = { file: piece.file, from_byte: piece.next_byte };
      if (piece.is_whole || !series) series = piece.series;
      else for (const [column, values] of Object.entries(piece.series)) (series[column] ??= []).push(...values);
      if (piece.rows || piece.is_whole) draw();
      if (piece.rows || piece.is_whole || piece.state !== shownState) await showFacts();
      shownState = piece.state;
    } catch (error) {
      under.textContent = error.message;
      if (!series) await showFacts();
    }
  }

  async function showFacts() {
    try {
      const run = await get(path);
      under.textContent = [run.algorithm, run.env, `${count(run.steps)} steps`, `${duration(run.seconds)}`,
        run.return_mean == null ? "no episode has ended yet" : `return ${figure(run.return_mean)}`].join(" · ");
      state.className = tone(run) || "soft";
      state.textContent = ending(run);
      goOn.replaceChildren(...(run.go_on ? ["It goes on with ", h("code", {}, run.go_on)] : []));
      started.replaceChildren(...facts(Object.entries(run.started).map(([key, value]) => [key, key === "at" ? new Date(value * 1000).toLocaleString() : String(value)])));
      settings.replaceChildren(...facts(Object.entries(run.config).map(([key, value]) => [key, value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value)])));
      latest.replaceChildren(...facts(Object.entries(run.last).filter(([, value]) => value != null).map(([key, value]) => [key, figure(value, 4)])));
      showCrashes(crashes, run);
      if (videos.childElementCount !== run.videos.length) {
        videos.replaceChildren(...run.videos.map((file) => h("figure", { class: "curve" }, h("figcaption", {}, file),
          h("video", { controls: true, preload: "metadata", src: `${path}/videos/${encodeURIComponent(file)}` }))));
      }
    } catch (error) {
      under.textContent = error.message;
    }
  }

  const stop = repeat(look, EVERY_S);
  const element = h("div", {}, h("h1", {}, name), under, state, goOn, h("div", { class: "tools" }, axisChoice(over, choose)), curves, videos, crashes,
    folded("Last row", latest), folded("Settings", settings), folded("Started with", started));
  return { title: name, element, close: () => (stop(), charts.forEach((each) => each.close())) };
}

// How often environments crash, the last reports, and which of them can be replayed.
function showCrashes(place, run) {
  const found = run.crashes;
  if (!found || place.dataset.count === String(found.count)) return;
  place.dataset.count = found.count;
  const rate = [
    `${count(found.count)}${found.is_all ? "" : " or more"} in all`,
    found.steps_per_crash ? `one in ${count(found.steps_per_crash)} steps` : "",
    found.recent ? `${count(found.recent)} in the last ${duration(found.recent_s)}` : "",
  ].filter(Boolean).join(", ");
  place.replaceChildren(h("h2", {}, "Crashes of environments"), h("p", {}, `${rate}.`),
    h("ul", { class: "plain" }, found.last.map((report) => h("li", {}, h("details", {},
      h("summary", {}, report.at ? h("time", { class: "soft" }, `${new Date(report.at * 1000).toLocaleString()}  `) : null, report.text),
      h("pre", {}, report.details || "It has left no traceback."),
      h("p", { class: "soft" }, report.can_replay
        ? ["It can be replayed, from seed ", h("code", {}, String(report.seed)), ": ", h("code", {}, `remotely_rl.supervision.logbook.load("${run.path}/crashes.jsonl")[${report.number}].replay(make)`)]
        : "It cannot be replayed: not all of its episode's actions are known."))))));
}

function folded(title, content) {
  return h("details", { class: "folded" }, h("summary", {}, h("h2", {}, title)), content);
}

function facts(pairs) {
  return pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}

// --- runs compared -----------------------------------------------------------------------------

function showCompare(params, asked) {
  const query = { run: asked.getAll("run"), over: asked.get("over") || STEPS, column: asked.get("column") || "rollout/return_mean" };
  const status = h("p", { class: "soft", role: "status" }), keys = h("ul", { class: "plain" });
  const place = h("div");
  const columns = ["rollout/return_mean", "rollout/return_max", "rollout/episode_length_mean", "time/steps_per_second",
    "train/policy_loss", "train/value_loss", "train/entropy", "train/approx_kl", "train/grad_norm", "train/staleness_mean"];
  if (!columns.includes(query.column)) columns.push(query.column);
  const column = h("select", { onchange: () => { query.column = column.value; again(); } },
    columns.map((each) => h("option", { value: each, selected: each === query.column }, short(each))));
  let shown = null;

  function again() {
    shown?.close();
    shown = curveChart(short(query.column), query.over, true);
    place.replaceChildren(shown.element);
    remember("compare", { ...query, over: query.over === STEPS ? "" : query.over });
    look();
  }

  async function look() {
    if (!query.run.length) {
      status.textContent = "Choose runs in the list of runs, and then Compare.";
      return;
    }
    try {
      const found = await get("/api/compare", query);
      const uPlot = await uplot();
      const lines = [], tables = [];
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
      keys.replaceChildren(...found.groups.map((group, i) => h("li", {}, swatch(i), group.label,
        h("span", { class: "soft" }, group.band ? `, mean and range of ${group.lines.length} runs: ` : ": "),
        group.lines.flatMap((line, k) => [k ? ", " : "", h("a", { href: runAddress(line.run) }, line.run)]))));
      status.textContent = found.left_out.length ? `Nothing to draw yet: ${found.left_out.join(", ")}` : "";
      if (tables.length) await shown.draw(uPlot.join(tables), lines);
    } catch (error) {
      status.textContent = error.message;
    }
  }

  again();
  const stop = repeat(look, 3 * EVERY_S);
  const element = h("div", {}, h("h1", {}, "Runs compared"), status,
    h("div", { class: "tools" }, h("label", {}, "show ", column), axisChoice(query.over, (axis) => { query.over = axis; again(); })), place, keys);
  return { title: "Runs compared", element, close: () => (stop(), shown?.close()) };
}

export const screens = [
  { path: "runs", nav: "Runs", group: "runs", show: showRuns },
  { path: "compare", group: "runs", show: showCompare },
  { path: "runs/:name", group: "runs", show: showRun },
];
