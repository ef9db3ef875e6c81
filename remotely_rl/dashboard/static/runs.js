// The training screens: the list of runs, and one run.  compare.js has the comparison.

import { runAddress, settingText, showCompare } from "/static/compare.js";
import { SECONDS, STEPS, axisChoice, curveChart } from "/static/curves.js";
import { paged } from "/static/paged.js";
import { address, count, duration, figure, get, h, plural, remember, repeat } from "/static/ui.js";

const EVERY_S = 5;
const MOST_COMPARED = 50;

// The charts of a run, in this order; each other column has its own chart.
const CURVES = [
  { title: "Return", columns: ["rollout/return_mean", "rollout/return_interval", "rollout/return_max", "evaluation/return_mean"], wide: true },
  { title: "Steps per second", columns: ["time/steps_per_second"] },
  { title: "Policy loss", columns: ["train/policy_loss"] },
  { title: "Value loss", columns: ["train/value_loss"] },
  { title: "Entropy", columns: ["train/entropy"] },
  { title: "KL", columns: ["train/approx_kl"] },
  { title: "Staleness", columns: ["train/staleness_min", "train/staleness_mean", "train/staleness_max"] },
  { title: "Seconds of an interval", columns: ["time/environment_s", "time/inference_s", "time/learning_s", "time/waiting_s", "time/idle_s"], stacked: true },
  { title: "Episode length", columns: ["rollout/episode_length_mean"] },
  { title: "Learning rate", columns: ["train/learning_rate"] },
];
// A column's name within a chart, with its prefix where another has the same without.
const short = (column) => column.replace(/^[^/]*\//, "").replaceAll("_", " ");
const labelOf = (column, columns) => columns.some((other) => other !== column && short(other) === short(column)) && column.startsWith("evaluation/") ? column : short(column);
// What an algorithm does not have stays 0, as the staleness of one that is on-policy: it takes no
// room.  A success that stays 0 does.
const isDrawn = (column, value) => value != null && (value !== 0 || !/^(train|time)\//.test(column));
const NOT_SHOWN = new Set([STEPS, SECONDS, "time/updates", "rollout/episodes"]);

// --- runs --------------------------------------------------------------------------------------

const tone = (row) => ({ trains: "", failed: "bad", killed: "bad", stopped: "wait" })[row.state] ?? "soft";
const ending = (row) => row.state === "trains" ? "trains now" : [row.state, row.why].filter(Boolean).join(": ");
const chosen = new Set();

function showRuns(params, asked) {
  const settings = asked.getAll("setting"), extra = { setting: settings };
  const folder = h("p", { class: "soft" });
  const compare = h("button", { type: "button", onclick: () => { location.hash = address("compare", { run: [...chosen] }); } });
  const all = h("button", { type: "button", onclick: () => chooseAll() });
  const choice = h("div", { class: "choice" });
  let rows = [], differing = null;

  function box(row) {
    return h("input", { type: "checkbox", checked: chosen.has(row.name), "aria-label": `Compare ${row.name}`,
      onchange: (event) => { event.target.checked ? chosen.add(row.name) : chosen.delete(row.name); updateButtons(); } });
  }
  function updateButtons() {
    compare.disabled = chosen.size < 1;
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
    all.disabled = !choosable().length && !chosen.size;
    all.textContent = isChosen() ? "Choose none" : rows.length > MOST_COMPARED ? `Choose the first ${MOST_COMPARED}` : "Choose all shown";
  }
  // The names that the button chooses, and whether they are: then it chooses none.
  const choosable = () => rows.slice(0, MOST_COMPARED).map((row) => row.name);
  const isChosen = () => chosen.size > 0 && choosable().every((name) => chosen.has(name));
  function chooseAll() {
    if (isChosen()) chosen.clear();
    else choosable().forEach((name) => chosen.add(name));
    for (const input of element.querySelectorAll("tbody input")) input.checked = chosen.has(input.getAttribute("aria-label").replace("Compare ", ""));
    updateButtons();
  }
  // A box for each setting in which the runs differ, or that is shown already: its column.
  function showChoice(names) {
    const offered = [...new Set([...settings, ...names])], now = offered.join(" ");
    if (differing === now) return;
    differing = now;
    choice.replaceChildren(...offered.map((name) => h("label", {}, h("input", { type: "checkbox", checked: settings.includes(name),
      onchange: (event) => {
        const next = event.target.checked ? [...settings, name] : settings.filter((each) => each !== name);
        const query = Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] || ""));
        location.hash = address("runs", { ...query, setting: next });
      } }), ` ${name}`)));
    columns.hidden = !offered.length;
  }
  function heard(page) {
    rows = page.rows;
    folder.textContent = page.folder;
    showChoice(page.settings);
    updateButtons();
  }
  updateButtons();
  const columns = h("details", { class: "folded", hidden: true, open: settings.length > 0 }, h("summary", {}, "Columns of settings"), choice);
  const hint = h("p", { class: "soft" }, "A search may have columns and settings: ", h("code", {}, "state=killed return>200 gamma=0.98 learning_rate < 1e-3"));
  const shown = paged("Runs", {
    path: "runs", sort: "-updated", key: (row) => row.name, nothing: "No run is here yet: remotely-rl train ppo makes one.",
    renew: (look) => repeat(look, EVERY_S), head: [folder, hint, columns], tools: [compare, all], heard, extra,
    columns: [
      { name: h("span", { class: "unseen" }, "Compare"), make: box },
      { key: "name", name: "Run", text: (row) => row.name, link: (row) => runAddress(row.name), name_: true },
      { key: "algorithm", name: "Algorithm", text: (row) => row.algorithm, minor: true },
      { key: "env", name: "Environment", text: (row) => row.env, minor: true, name_: true },
      { key: "seed", name: "Seed", text: (row) => row.seed, number: true, minor: true },
      { key: "state", name: "State", text: (row) => row.state, tone },
      ...settings.map((name) => ({ key: `setting:${name}`, name, text: (row) => settingCell(row[`setting:${name}`]), number: true })),
      { key: "tags", name: "Tags", text: (row) => row.tags, minor: true },
      { key: "steps", name: "Steps", text: (row) => count(row.steps), number: true },
      { key: "steps_per_s", name: "Steps/s", text: (row) => count(row.steps_per_s), number: true, minor: true },
      { key: "return_mean", name: "Return", text: (row) => figure(row.return_mean), number: true },
      { key: "return_max", name: "Max", text: (row) => figure(row.return_max), number: true, minor: true },
      { key: "seconds", name: "Time", text: (row) => duration(row.seconds), number: true, minor: true },
      { key: "updated", name: "Last row", text: (row) => `${duration(Date.now() / 1000 - row.updated)} ago`, number: true, minor: true },
    ],
  })(params, asked);
  const element = shown.element;
  return shown;
}

const settingCell = (value) => (value == null ? "" : settingText(value));

// --- one run -----------------------------------------------------------------------------------

function showRun(params, asked) {
  const name = params.name, path = `/api/runs/${name.split("/").map(encodeURIComponent).join("/")}`;
  let over = asked.get("over") === SECONDS ? SECONDS : STEPS;
  const under = h("p", { class: "soft" }, "…"), curves = h("div"), settings = h("dl", { class: "facts" });
  const latest = h("dl", { class: "facts" }), videos = h("div"), evaluations = h("section"), media = h("section"), started = h("dl", { class: "facts" });
  const crashes = h("section"), mediaCharts = [];
  const state = h("p", { role: "status" }), goOn = h("p", { class: "soft" }), note = h("p", {});
  let charts = [], series = null, shownState = "", shownMedia = "", from = { file: "", from_byte: 0 };

  function choose(axis) {
    over = axis;
    remember(`runs/${name.split("/").map(encodeURIComponent).join("/")}`, { over: over === STEPS ? "" : over });
    charts.forEach((each) => each.close());
    charts = [];
    draw();
  }

  function layout() {
    const there = Object.keys(series).filter((column) => series[column].some((value) => isDrawn(column, value)));
    const known = new Set(CURVES.flatMap((curve) => curve.columns));
    const others = there.filter((column) => !known.has(column) && !NOT_SHOWN.has(column));
    const all = [...CURVES, ...others.map((column) => ({ title: column, columns: [column] }))]
      .map((curve) => ({ ...curve, columns: curve.columns.filter((column) => there.includes(column)) }))
      .filter((curve) => curve.columns.length);
    charts = all.map((curve) => ({ ...curveChart(curve.title, over, curve), columns: curve.columns }));
    const [wide, rest] = [0, 1].map((i) => charts.filter((_, k) => Boolean(all[k].wide) === !i));
    curves.replaceChildren(...wide.map((each) => each.element), h("div", { class: "curves" }, rest.map((each) => each.element)));
  }

  function draw() {
    if (!series) return;
    const filled = Object.keys(series).filter((column) => series[column].some((value) => isDrawn(column, value))).length;
    if (!charts.length || layout.filled !== filled) {
      charts.forEach((each) => each.close());
      layout();
      layout.filled = filled;
    }
    for (const each of charts) {
      each.draw([series[over], ...each.columns.map((column) => series[column])], each.columns.map((column) => ({ label: labelOf(column, each.columns) })));
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
      note.replaceChildren(...[run.note, run.tags && h("span", { class: "soft" }, ` ${run.tags}`)].filter(Boolean));
      state.className = tone(run) || "soft";
      state.textContent = ending(run);
      goOn.replaceChildren(...(run.go_on ? ["It goes on with ", h("code", {}, run.go_on)]
        : run.start_anew ? ["It has no checkpoint.  Remove its folder, and start it anew with ", h("code", {}, run.start_anew)] : []));
      started.replaceChildren(...facts(Object.entries(run.started).map(([key, value]) => [key, key === "at" ? new Date(value * 1000).toLocaleString() : String(value)])));
      settings.replaceChildren(...facts(Object.entries(run.config).map(([key, value]) => [key, settingText(value)])));
      latest.replaceChildren(...facts(Object.entries(run.last).filter(([, value]) => value != null).map(([key, value]) => [key, figure(value, 4)])));
      showCrashes(crashes, run);
      showEvaluations(evaluations, run, path);
      if (videos.childElementCount !== run.videos.length) {
        videos.replaceChildren(...run.videos.map(({ file, env_steps, scores }) => h("figure", { class: "curve", id: file },
          h("figcaption", {}, [file, env_steps == null ? "" : `after ${count(env_steps)} steps`, scores.length ? `score ${scores.map((score) => figure(score)).join(", ")}` : ""].filter(Boolean).join(", ")),
          h("video", { controls: true, preload: "metadata", src: `${path}/videos/${encodeURIComponent(file)}` }))));
      }
      if (run.media && run.media !== shownMedia) {
        shownMedia = run.media;
        await showMedia(media, path, mediaCharts);
      }
    } catch (error) {
      under.textContent = error.message;
    }
  }

  const stop = repeat(look, EVERY_S);
  const element = h("div", {}, h("h1", {}, name), under, state, goOn, note, h("div", { class: "tools" }, axisChoice(over, choose)), curves, evaluations, videos, media, crashes,
    folded("Last row", latest), folded("Settings", settings), folded("Started with", started));
  return { title: name, element, close: () => (stop(), [...charts, ...mediaCharts].forEach((each) => each.close())) };
}

// A sentence on the things that a list leaves out; null if there are none.
const leftOut = (number, noun, where) => number > 0 ? h("p", { class: "soft" }, `${plural(number, `earlier ${noun}`)} not shown here: see `, where, ".") : null;

const SHOWN_EVALUATIONS = 10;

// The last evaluations, each with the videos of the policy that it has measured.
function showEvaluations(place, run, path) {
  const videosOf = (steps) => run.videos.filter((video) => video.env_steps === steps);
  const shown = run.evaluations.filter((each, i) => i < SHOWN_EVALUATIONS || videosOf(each.env_steps).length);
  const state = JSON.stringify([run.evaluations, run.videos]);
  if (!shown.length || place.dataset.state === state) return;
  place.dataset.state = state;
  const best = Math.max(...run.evaluations.map((each) => each.return_mean ?? -Infinity));
  place.replaceChildren(h("h2", {}, "Evaluations"), h("ul", { class: "plain" }, shown.map((each) => h("li", {},
    `after ${count(each.env_steps)} steps: ${figure(each.return_mean, 4)}${each.return_mean === best ? ", the best" : ""} `,
    videosOf(each.env_steps).map(({ file }) => h("a", { href: `${path}/videos/${encodeURIComponent(file)}`, target: "_blank" }, file)),
    each.return_mean === best && !videosOf(each.env_steps).length
      ? h("span", { class: "soft" }, "film it: ", h("code", {}, `remotely-rl play ${run.path} --checkpoint best --video ${run.path}/best.mp4`)) : null))),
    leftOut(run.evaluations.length - shown.length, "evaluation", "the curve of the return") ?? "");
}

// What hooks have logged: the images of a name in the order of their steps, and the quantiles of
// each histogram over steps, with its last counts.
async function showMedia(place, path, charts) {
  const found = await get(`${path}/media`);
  charts.splice(0).forEach((each) => each.close());
  const images = Object.entries(found.images).map(([name, all]) => {
    const picture = h("img", { alt: "" }), at = h("output", { class: "soft" });
    const choose = h("input", { type: "range", min: 0, max: all.length - 1, value: all.length - 1, "aria-label": `Step of ${name}`, oninput: () => show(Number(choose.value)) });
    function show(i) {
      picture.src = `${path}/media/${encodeURIComponent(all[i].file)}`;
      picture.alt = `${name} after ${all[i].step} steps`;
      at.textContent = `after ${count(all[i].step)} steps`;
    }
    show(all.length - 1);
    return h("figure", { class: "curve" }, h("figcaption", {}, h("span", {}, name), at), picture, all.length > 1 ? choose : null);
  });
  const histograms = Object.entries(found.histograms).filter(([, lines]) => lines.length).map(([name, lines]) => {
    const chart = curveChart(name, STEPS), quantile = (k) => lines.map((line) => line.quantiles[k]);
    charts.push(chart);
    chart.draw([lines.map((line) => line.step), quantile(3), ...[0, 6, 1, 5, 2, 4].map(quantile)],
      [{ label: "median", colour: 0 }, ...[0, 1, 2, 3, 4, 5].map((k) => ({ colour: 0, width: 0, fill: k % 2 ? [k + 2, k + 1] : undefined }))]);
    chart.element.append(bars(lines.at(-1)));
    return chart.element;
  });
  const parts = [...images, ...histograms];
  place.replaceChildren(...(parts.length ? [h("h2", {}, "Images and histograms"), h("div", { class: "curves" }, parts)] : []));
}

// The counts of a histogram, as bars.
function bars({ counts, ends }) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), most = Math.max(...counts, 1);
  for (const [name, value] of [["viewBox", `0 0 ${counts.length * 10} 40`], ["preserveAspectRatio", "none"], ["class", "bars"], ["role", "img"], ["aria-label", `the last counts, from ${figure(ends[0])} to ${figure(ends[1])}`]]) svg.setAttribute(name, value);
  counts.forEach((counted, i) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect"), height = (38 * counted) / most;
    for (const [name, value] of [["x", i * 10 + 1], ["y", 40 - height], ["width", 8], ["height", height]]) bar.setAttribute(name, value);
    svg.append(bar);
  });
  return h("div", {}, svg, h("p", { class: "soft ends" }, h("span", {}, figure(ends[0])), h("span", {}, figure(ends[1]))));
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
        : "It cannot be replayed: not all of its episode's actions are known."))))),
    leftOut(found.count - found.last.length, "report", h("code", {}, `${run.path}/crashes.jsonl`)) ?? "");
}

function folded(title, content) {
  return h("details", { class: "folded" }, h("summary", {}, h("h2", {}, title)), content);
}

function facts(pairs) {
  return pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}

export const screens = [
  { path: "runs", nav: "Runs", group: "runs", show: showRuns },
  { path: "compare", group: "runs", show: showCompare },
  { path: "runs/:name", group: "runs", show: showRun },
];
