// Curves: a chart of lines over steps or time, its colours, and the choice of its x axis.

import { duration, figure, h } from "/static/ui.js";

export const STEPS = "time/env_steps", SECONDS = "time/seconds";
const FEW = 30; // a line of at most this many points has markers

const COLOURS = {
  light: ["#2b6f5e", "#b5632b", "#4a62a8", "#8d4a86", "#7a7320", "#3d7f9c", "#a3382a", "#5c5f63"],
  dark: ["#7cc4ae", "#e0a070", "#93a9e6", "#d097ca", "#c9c070", "#84c1dc", "#f0907f", "#a9aeb4"],
};
const GOLDEN_DEGREES = 137.508; // between the hues of further colours, so that none repeats
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

const isDark = () => document.documentElement.dataset.theme === "dark";
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The colour of line i: those of COLOURS first, then others, as #rrggbb.
export function colourOf(i) {
  const known = COLOURS[isDark() ? "dark" : "light"];
  if (i < known.length) return known[i];
  const hue = (i * GOLDEN_DEGREES) % 360, light = (isDark() ? 0.72 : 0.42) + 0.07 * ((i % 3) - 1);
  const part = (n) => {
    const at = (n + hue / 30) % 12, spread = 0.5 * Math.min(light, 1 - light);
    const value = light - spread * Math.max(-1, Math.min(at - 3, 9 - at, 1));
    return Math.round(255 * value).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}
const dashOf = (i) => DASHES[Math.floor(i / COLOURS.light.length) % DASHES.length];

let library = null;
export function uplot() {
  library ??= new Promise((done, failed) => {
    document.head.append(h("link", { rel: "stylesheet", href: "/static/uPlot.min.css" }));
    const script = h("script", { src: "/static/uPlot.iife.min.js", onload: () => done(window.uPlot), onerror: () => failed(new Error("uPlot did not load")) });
    document.head.append(script);
  });
  return library;
}

// A chart.  `draw(data, lines)`: data in the format of uPlot, lines {label, colour, width, points,
// fill: [high, low] or undefined}.  With `stacked`, each line is drawn on top of those before it,
// and the area below it is filled.  With `log.x` and `log.y`, numbers that are not positive are
// left out.
export function curveChart(title, over, { wide = false, stacked = false, log = {} } = {}) {
  const plot = h("div", { class: "plot" }), newest = h("output", {});
  const element = h("figure", { class: `curve${wide ? " wide" : ""}`, role: "group", "aria-label": title },
    h("figcaption", {}, h("span", {}, title), newest), plot);
  let chart = null, last = null;

  async function draw(data, lines) {
    last = [data, lines];
    const uPlot = await uplot();
    caption(lines, (i) => data[i + 1].findLast((value) => value != null));
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${title}: ${newest.textContent || "no value yet"}`);
    if (chart && chart.series.length === data.length) {
      chart.setData(drawn(data));
      return;
    }
    make(uPlot);
  }

  // The data as they are drawn: sums in a stack, positive numbers on a logarithmic axis.
  function drawn(data) {
    if (stacked) {
      const sums = data[0].map(() => 0);
      return [data[0], ...data.slice(1).map((values) => values.map((value, i) => (sums[i] += value ?? 0)))];
    }
    const positive = (values) => values.map((value) => (value > 0 ? value : null));
    let [x, ...rest] = data;
    if (log.x) {
      const kept = x.map((value) => value > 0);
      [x, ...rest] = data.map((values) => values.filter((_, i) => kept[i]));
    }
    return [x, ...(log.y ? rest.map(positive) : rest)];
  }

  function make(uPlot) {
    chart?.destroy();
    const [data, lines] = last, soft = variable("--soft"), rule = variable("--rule");
    const axis = { stroke: soft, grid: { stroke: rule, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif", gap: 4 };
    const bands = [], series = [{ label: over === STEPS ? "steps" : "time" }];
    lines.forEach((line, i) => {
      const at = line.colour ?? i, colour = colourOf(at), width = line.width ?? 1.4;
      series.push({
        label: line.label || "", stroke: width === 0 ? "transparent" : width < 1 ? `${colour}99` : colour,
        width, dash: dashOf(at), spanGaps: true,
        points: { show: (u, k) => width > 0 && !stacked && few(u.data[k]), size: line.points ? 7 : 4, fill: colour },
        ...(stacked && i === 0 ? { fill: `${colour}66` } : {}),
      });
      if (line.fill) bands.push({ series: line.fill, fill: `${colour}2e` });
      if (stacked && i) bands.push({ series: [i + 1, i], fill: `${colour}66` });
    });
    const range = (u, low, high) => uPlot.rangeNum(Math.min(0, low ?? 0), high ?? 1, 0.1, true);
    chart = new uPlot({
      width: plot.clientWidth || 340, height: plot.clientHeight || 190,
      series, bands, legend: { show: false }, cursor: { y: false, points: { size: 5 } },
      scales: { x: { time: false, ...(log.x ? { distr: 3 } : {}) }, y: log.y ? { distr: 3 } : stacked ? { range } : {} },
      axes: [
        { ...axis, size: 28, space: 70, values: (_, ticks) => labels(ticks, (tick, digits) => over === STEPS ? steps(tick, digits) : digits === 3 ? duration(tick) : tick >= 60 ? `${figure(tick / 60, digits)} min` : `${figure(tick, digits)} s`) },
        { ...axis, size: 60, values: (_, ticks) => labels(ticks, figure) },
      ],
      hooks: { setCursor: [(u) => say(u, lines)] },
    }, drawn(data), plot);
  }

  function say(u, lines) {
    const at = u.cursor.idx;
    if (at == null || u.cursor.left < 0 || log.x) return;
    const x = u.data[0][at];
    caption(lines, (i) => last[0][i + 1][at], `at ${over === STEPS ? steps(x) : duration(x)}: `);
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

// Whether a line has so few points that it needs markers: a single one would be invisible.
function few(values) {
  let found = 0;
  for (const value of values) if (value != null && ++found > FEW) return false;
  return true;
}

// A swatch of a line's colour, shown before its name.
export function swatch(i) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  svg.setAttribute("class", "key");
  svg.setAttribute("aria-hidden", "true");
  for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", colourOf(i)]]) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function steps(number, digits = 3) {
  if (number >= 1e6) return `${figure(number / 1e6, digits)} M`;
  return number >= 1e3 ? `${figure(number / 1e3, digits)} k` : figure(number, digits);
}

const MOST_DIGITS = 17; // which tell any two numbers apart

// The labels of ticks, as short as they can be with no two alike: `label(tick, digits)`.
export function labels(ticks, label) {
  let found = [];
  for (let digits = 3; digits <= MOST_DIGITS; digits++) {
    found = ticks.map((tick) => (tick == null ? "" : label(tick, digits)));
    const shown = found.filter(Boolean);
    if (new Set(shown).size === shown.length) break;
  }
  return found;
}

export function axisChoice(over, choose) {
  const select = h("select", { onchange: () => choose(select.value) },
    h("option", { value: STEPS, selected: over === STEPS }, "steps"),
    h("option", { value: SECONDS, selected: over === SECONDS }, "time"));
  return h("label", {}, "over ", select);
}
