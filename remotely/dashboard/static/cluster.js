// The screens of the cluster: overview, machines, actors, one actor.

import { paged } from "/static/paged.js";
import { address, bytes, count, cut, drawing, duration, figure, get, h, number, plural, repeat, share, spark, table } from "/static/ui.js";

const RETRY_S = 5;
const HISTORY = 120; // past values of the overview, kept in the browser only
const LOG_KEPT = 400_000; // characters
const history_ = { calls: [], running: [] };
let newest = null;
const listeners = new Set();

// One stream of the overview for all screens, open while the page is visible.
export function begin(setStatus) {
  let source = null;
  function look() {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) {
      source = new EventSource("/api/events");
      source.onmessage = (event) => {
        const overview = JSON.parse(event.data);
        if (overview.error) return setStatus(overview.error, true);
        newest = overview;
        document.body.classList.toggle("stale", Boolean(overview.stale));
        if (overview.stale) setStatus(`${overview.stale}. The cluster was last seen ${duration(overview.age_s)} ago.`, true);
        else {
          keep(history_.calls, overview.calls_per_s);
          keep(history_.running, overview.running);
          setStatus(`${overview.address} · ${plural(overview.machines, "machine")}, ${plural(overview.actors, "actor")}`);
        }
        for (const listener of listeners) listener(overview);
      };
      source.onerror = () => {
        setStatus("The dashboard does not answer; trying again.", true);
        if (source?.readyState === EventSource.CLOSED) retry();
      };
    }
  }
  // An EventSource reconnects after a network failure, but not after an error response, as from a
  // restarted dashboard that does not know the cookie.
  function retry() {
    source = null;
    get("/api/cluster").catch((error) => setStatus(error.message, true));
    setTimeout(look, RETRY_S * 1000);
  }
  document.addEventListener("visibilitychange", look);
  look();
}

function keep(list, value) {
  list.push(value);
  if (list.length > HISTORY) list.shift();
}

// Call a listener with the newest overview, if there is one, and with each later one.
function follow(listener, now = true) {
  listeners.add(listener);
  if (newest && now) listener(newest);
  return () => listeners.delete(listener);
}

// --- overview ----------------------------------------------------------------------------------

function showOverview() {
  const figures = h("dl", { class: "figures" });
  const waits = h("section", { "aria-label": "Waiting" }), ends = h("section", { "aria-label": "Recent failures" });
  const classes = table([
    { name: "Class", text: (row) => row.class, link: (row) => address("actors", { q: row.class }), name_: true },
    { name: "Actors", text: (row) => count(row.actors), number: true },
    { name: "Calls/s", text: (row) => figure(row.calls_per_s), number: true },
    { name: "CPU", text: (row) => `${count(row.cpu_percent)} %`, number: true },
    { name: "Memory", text: (row) => bytes(row.memory), number: true },
  ], (row) => row.class, "Classes of actors");
  const open = new Set(), others = h("ul", { class: "plain" });
  const happened = h("ul", { class: "plain" });
  const events = h("details", {}, h("summary", {}, "Events"), happened);
  let stop = () => {};
  events.addEventListener("toggle", () => {
    stop();
    if (events.open) stop = follow(showEvents);
  });

  async function showEvents(now) {
    try {
      const found = await get("/api/history", { until: now.last_event });
      happened.replaceChildren(...found.events.map((each) =>
        h("li", { class: BAD.has(each.kind) ? "bad" : "" }, `${new Date(each.at * 1000).toLocaleString()}: ${each.text}`)),
        ...more(found.earlier, "earlier: remotely events"));
    } catch (error) {
      happened.replaceChildren(h("li", { class: "bad" }, error.message));
    }
  }

  function show(now) {
    const busy = now.total_cpus - now.total_free_cpus;
    const gpus = now.total_gpus - now.total_free_gpus;
    const memory = now.total_memory - now.total_free_memory;
    figures.replaceChildren(
      number("CPUs reserved", figure(busy), `of ${figure(now.total_cpus)}${now.counts_cpus ? "" : ", by actors that name cpus"}`, share(busy, now.total_cpus, "CPUs reserved")),
      ...(now.total_gpus ? [number("GPUs reserved", figure(gpus), `of ${figure(now.total_gpus)}`, share(gpus, now.total_gpus, "GPUs reserved"))] : []),
      number("Memory in use", bytes(now.total_memory_used), `of ${bytes(now.total_memory_total)}`, share(now.total_memory_used, now.total_memory_total, "memory in use")),
      number("Memory of actors", bytes(now.memory), memory ? `${bytes(memory)} reserved` : "", share(now.memory, now.total_memory, "memory of actors")),
      number("CPU of actors", `${count(now.cpu_percent)} %`, "of one core"),
      number("Calls per second", figure(now.calls_per_s), null, spark(history_.calls)),
      number("Running calls", count(now.running), `${count(now.queued)} queued`, spark(history_.running)),
      number("Waiting for resources", count(now.waiting)),
    );
    waits.replaceChildren(
      ...(now.waits.length || now.away.length || now.sick.length || now.draining.length ? [h("h2", {}, "Waiting")] : []),
      h("ul", { class: "plain" },
        now.away.map((machine) => h("li", { class: "bad" }, `${machine} cannot be reached`)),
        now.draining.map((each) => h("li", {}, `${each.machine} is being drained, and leaves within ${duration(each.drains_s)}`)),
        now.sick.map((each) => h("li", { class: "bad" }, `${each.machine} is sick for ${duration(each.sick_s)}: ${each.sick}`)),
        now.waits.map((wait) => waiting(wait, open)),
        more(now.more_wait, "more requests")));
    const key = JSON.stringify([now.ended, ...now.ends.map((end) => [end.actor, end.life, end.restarting, end.restarted, duration(end.ago_s)])]);
    if (ends.dataset.key !== key) {
      ends.dataset.key = key;
      ends.replaceChildren(h("h2", {}, "Recent failures"), now.ends.length
        ? h("ul", { class: "plain" }, now.ends.map((end) => failure(end, open)), more(now.ended - now.ends.length, "earlier: remotely events"))
        : h("p", { class: "note" }, "No actor has died or been lost since the master started."));
    }
    classes.show(now.classes, "", "There are no actors on this cluster.");
    others.replaceChildren(...more(now.all_classes - now.classes.length, "classes of fewer actors"));
  }
  const element = h("div", {}, h("h1", {}, "Overview"), figures, waits,
    h("h2", {}, "Classes"), classes.element, others, ends, events);
  const unfollow = follow(show);
  return { title: "Overview", element, close: () => { stop(); unfollow(); } };
}

const BAD = new Set(["died", "lost", "sick", "revoked", "refused"]); // events

// A line, and the rest on demand; `open` has the ids of those that were opened.
function folded(id, line, rest, open) {
  return h("details", {
    open: open.has(id),
    ontoggle: (event) => event.target.open ? open.add(id) : open.delete(id),
  }, h("summary", {}, line), rest);
}

function waiting(wait, open) {
  const [why, ...advice] = wait.why.split(". ");
  const line = [h("span", { class: "wait" }, `${plural(wait.count, "request")} for ${wait.class}`), ` for ${duration(wait.waits_s)}: ${why}`];
  if (!advice.length) return h("li", {}, line);
  return h("li", {}, folded(`${wait.class} waits`, line, h("p", { class: "note" }, advice.join(". ")), open));
}

// The line below a list that was cut.
function more(left, what) {
  return left > 0 ? [h("li", { class: "soft" }, `and ${count(left)} ${what}`)] : [];
}

function failure(end, open) {
  const line = [h("span", { class: "bad" }, `${end.name}: ${end.how}`), end.machine ? ` on ${end.machine}` : "",
    ` ${duration(end.ago_s)} ago`, end.restarted ? ", and runs again" : end.restarting ? ", and is being restarted" : "",
    end.why ? `: ${end.why}` : ""];
  const log = h("a", { href: actorAddress(end.actor) }, "log");
  if (!end.stderr) return h("li", {}, line, " · ", log);
  return h("li", {}, folded(`${end.actor} ${end.life}`, line, [h("pre", {}, end.stderr), h("p", {}, log)], open));
}

const actorAddress = (id) => `#/actors/${encodeURIComponent(id)}`;
const seconds = (number) => number == null ? "" : number < 0.001 ? `${figure(number * 1e6)} µs` : number < 1 ? `${figure(number * 1000)} ms` : `${figure(number)} s`;

// --- tables ------------------------------------------------------------------------------------

function renew(look) {
  look();
  let seen = newest; // skip the first overview: it is no newer than the first page
  return follow((overview) => (seen ? look() : (seen = overview)), false);
}

const free = (row, what) => (row.away_s ? "" : `${figure(row[`free_${what}`])} of ${figure(row[what])}`);

const showMachines = paged("Machines", { path: "machines", renew, columns: [
  { key: "machine", name: "Machine", text: (row) => row.machine, name_: true },
  { key: "address", name: "Address", text: (row) => row.address, minor: true },
  { name: "Python", text: (row) => row.python, minor: true },
  { key: "free_cpus", name: "Free CPUs", text: (row) => row.away_s ? `unreachable for ${duration(row.away_s)}` : row.drains_s ? `leaves within ${duration(row.drains_s)}` : row.sick ? `sick for ${duration(row.sick_s)}` : free(row, "cpus"), number: true, tone: (row) => row.away_s || row.sick ? "bad" : "" },
  { key: "free_gpus", name: "Free GPUs", text: (row) => row.gpus ? free(row, "gpus") : "", number: true, minor: true },
  { key: "cpu_percent", name: "CPU", text: (row) => row.memory_total ? `${count(row.cpu_percent)} %` : "", number: true },
  { key: "memory_used", name: "Memory in use", text: (row) => row.memory_total ? `${bytes(row.memory_used)} of ${bytes(row.memory_total)}` : "", number: true },
  { key: "free_memory", name: "Reserved", text: (row) => row.away_s ? "" : bytes(row.memory - row.free_memory), number: true, minor: true },
  { key: "disk_used", name: "Disk", text: (row) => row.disk_total ? `${bytes(row.disk_used)} of ${bytes(row.disk_total)}` : "", number: true, minor: true },
  { name: "GPUs in use", text: (row) => row.gpu_percent.map((percent, i) => row.gpu_memory_total[i] ? `${count(percent)} %, ${bytes(row.gpu_memory_used[i])} of ${bytes(row.gpu_memory_total[i])}` : "?").join("; "), minor: true },
  { name: "CPU, last hour", draw: (row) => spark(row.cpu_hour, 100), minor: true },
  { key: "actors", name: "Actors", text: (row) => count(row.actors), number: true },
], key: (row) => row.worker, nothing: "No machine has joined the cluster." });

function doing(row) {
  if (row.stopped_at) return `stopped ${duration(row.stopped_s)}${row.is_debugged ? ", debugged" : ""}`;
  if (!row.method) return "";
  return `${cut(row.method, 18)} ${duration(row.method_s)}${row.running > 1 ? ` and ${row.running - 1} more` : ""}`;
}

// Those that a search for an actor finds among the last that died.
const dead = h("section", { "aria-label": "Ended actors" }), openDead = new Set();
function showDead(page) {
  dead.replaceChildren(...(page.ends.length
    ? [h("h2", {}, "Ended"), h("ul", { class: "plain" }, page.ends.map((end) => failure(end, openDead)))]
    : []));
}

const showActors = paged("Actors", { path: "actors", renew, foot: dead, heard: showDead, columns: [
  { key: "name", name: "Actor", text: (row) => cut(row.name, 30), link: (row) => actorAddress(row.actor), name_: true },
  { key: "class", name: "Class", text: (row) => cut(row.class, 22), minor: true, name_: true },
  { key: "machine", name: "Machine", text: (row) => row.machine, minor: true },
  { key: "pid", name: "Pid", text: (row) => row.pid, number: true, minor: true },
  { key: "cpu_percent", name: "CPU", text: (row) => `${count(row.cpu_percent)} %`, number: true },
  { key: "memory", name: "Memory", text: (row) => bytes(row.memory), number: true },
  { key: "calls", name: "Calls", text: (row) => count(row.calls), number: true, minor: true },
  { key: "errors", name: "Errors", text: (row) => row.errors ? count(row.errors) : "", number: true, tone: (row) => row.errors ? "bad" : "" },
  { key: "calls_per_s", name: "Calls/s", text: (row) => figure(row.calls_per_s), number: true },
  { key: "busy_percent", name: "Busy", text: (row) => `${count(row.busy_percent)} %`, number: true },
  { key: "mean_s", name: "Mean", text: (row) => seconds(row.mean_s), number: true, minor: true },
  { key: "p99_s", name: "99 %", text: (row) => row.p99_s == null ? "" : `${seconds(row.p99_s)} in ${cut(row.p99_method, 18)}${row.p99_runs ? ", and runs on" : ""}`, number: true, name_: true },
  { key: "received", name: "In", text: (row) => bytes(row.received), number: true, minor: true },
  { key: "sent", name: "Out", text: (row) => bytes(row.sent), number: true, minor: true },
  { key: "method", name: "Runs", text: doing, minor: true, name_: true },
  { key: "queue", name: "Queue", text: (row) => row.queue || "", number: true },
  { key: "since", name: "Age", text: (row) => duration(Date.now() / 1000 - row.since), number: true, minor: true },
], key: (row) => row.actor, nothing: "There are no actors on this cluster." });

// --- one actor ---------------------------------------------------------------------------------

function ownerOf(row) {
  if (row.dialled_in) return "its own process, which serves it";
  if (!row.owner) return "none: it is detached";
  if (row.owner.actor) return `the actor ${row.owner.actor}`;
  if (!row.owner.pid) return "a disconnected client";
  return `${row.owner.script ? `${row.owner.script}, ` : ""}pid ${row.owner.pid} on ${row.owner.machine}`;
}

function showActor(params) {
  const id = params.id, path = `/api/actors/${encodeURIComponent(id)}`;
  const head = h("h1", {}, "Actor"), under = h("p", { class: "soft" }), facts = h("dl", { class: "facts" });
  const figures = h("dl", { class: "figures" });
  const history = { calls: [], memory: [] };
  const methods = table([
    { name: "Method", text: (row) => row.method, name_: true },
    { name: "Calls", text: (row) => count(row.calls), number: true },
    { name: "Errors", text: (row) => row.errors ? count(row.errors) : "", number: true, tone: (row) => row.errors ? "bad" : "" },
    { name: "Mean", text: (row) => seconds(row.mean_s), number: true },
    { name: "99 %", text: (row) => seconds(row.p99_s), number: true },
  ], (row) => row.method, "Methods that took the most time, or failed most often");
  const own = table([
    { name: "Metric", text: (row) => row.name, name_: true },
    { name: "Labels", text: (row) => Object.entries(row.labels).map(([name, value]) => `${name}=${value}`).join(" "), name_: true },
    { name: "Value", text: (row) => row.kind !== "histogram" ? (row.value == null ? "NaN" : figure(row.value, 6)) : row.count ? `mean ${figure(row.value / row.count)}` : "", number: true },
    { name: "Values", text: (row) => row.kind === "histogram" ? count(row.count) : "", number: true },
    { name: "50 %", text: (row) => row.kind === "histogram" ? figure(row.p50) : "", number: true },
    { name: "99 %", text: (row) => row.kind === "histogram" ? figure(row.p99) : "", number: true },
  ], (row) => row.name + JSON.stringify(row.labels), "Its own metrics");
  const owns = h("section", { hidden: true }, h("h2", {}, "Its own metrics"), own.element);
  const flame = h("section", { "aria-label": "Flame graph" });
  const take = h("button", { type: "button", onclick: takeFlame }, "Sample for 3 s");
  const why = h("span", { class: "soft" });

  async function look() {
    try {
      const row = await get(path);
      head.textContent = row.name;
      under.textContent = `${row.class} · ${row.machine} · pid ${row.pid}`;
      keep(history.calls, row.calls_per_s);
      keep(history.memory, row.memory);
      figures.replaceChildren(
        number("Calls per second", figure(row.calls_per_s), `${count(row.calls)} in total`, spark(history.calls)),
        number("Memory", bytes(row.memory), row.memory_limit ? `of ${bytes(row.memory_limit)}` : "", spark(history.memory)),
        number("CPU", `${count(row.cpu_percent)} %`, `${figure(row.cpus)} reserved`),
        number("Busy", `${count(row.busy_percent)} %`, "of the time"),
        number("Bytes in", bytes(row.received)),
        number("Bytes out", bytes(row.sent)),
        number("Runs", row.method || "nothing", row.method ? duration(row.method_s) : ""),
        number("Queue", count(row.queue)),
        number("Errors", count(row.errors), row.errors ? "of calls and items of streams" : ""));
      methods.show(row.methods, "", "No call has ended yet.");
      owns.hidden = !row.metrics.length;
      own.show(row.metrics, "", "");
      const stopped = row.stopped_at && `at ${row.stopped_at} for ${duration(row.stopped_s)}; `
        + (row.is_debugged ? "a debugger is attached" : `remotely debug ${row.name}`);
      const shown = [["Stopped", stopped], ["Id", row.actor], ["Owner", ownerOf(row)],
        ["GPUs", row.gpu_ids.join(", ")], ["Age", duration(Date.now() / 1000 - row.since)],
        ["Resources", Object.entries(row.resources).map(([name, amount]) => `${amount} ${name}`).join(", ")]];
      facts.replaceChildren(...shown.filter(([, value]) => value)
        .flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
        ...(row.owned.length ? [h("dt", {}, "Owns"), h("dd", {}, row.owned.flatMap((each, i) =>
          [i ? ", " : "", h("a", { href: actorAddress(each.actor) }, each.name)]),
          row.owns_more ? ` and ${count(row.owns_more)} more` : null)] : []));
      take.disabled = Boolean(row.flame);
      why.textContent = row.flame ? `Not sampled: ${row.flame}.` : "";
    } catch (error) {
      under.textContent = error.message;
      take.disabled = true;
    }
  }

  async function takeFlame() {
    take.disabled = true;
    why.textContent = "Sampling…";
    try {
      const root = await get(`${path}/flame`);
      why.textContent = `${count(root.samples)} samples, of all threads, including idle ones`;
      flame.replaceChildren(h("div", { class: "flame" }, frames(root.calls, root.samples, 0)));
    } catch (error) {
      why.textContent = error.message;
    }
    take.disabled = false;
  }

  const log = followLog(`${path}/log`);
  const stop = follow(look);
  if (!newest) look();
  const element = h("div", {}, head, under, figures, facts, h("h2", {}, "Methods"), methods.element, owns, h("h2", {}, "Output"), log.element,
    h("h2", {}, "Where its time goes"), h("div", { class: "tools" }, take, why), flame);
  return { title: "Actor", element, close: () => (stop(), log.close()) };
}

// --- timeline ----------------------------------------------------------------------------------

function showTimeline() {
  const take = h("button", { type: "button", onclick: record }, "Record for 2 s");
  const why = h("span", { class: "soft" }), found = h("div", {});
  const file = h("a", { href: "/api/timeline?seconds=2&trace", download: "trace.json" }, "record a file for Perfetto");
  async function record() {
    take.disabled = true;
    why.textContent = "Recording…";
    try {
      const timeline = await get("/api/timeline", { seconds: 2 });
      why.textContent = timeline.text;
      found.replaceChildren(...(timeline.actors.length
        ? [axis(timeline.seconds), h("dl", { class: "bars" }, timeline.actors.flatMap(lane)),
          h("ul", { class: "plain" }, more(timeline.more, "more actors, which the file has"))]
        : [h("p", { class: "note" }, "No actor has run a call meanwhile.")]));
    } catch (error) {
      why.textContent = error.message;
    }
    take.disabled = false;
  }
  const element = h("div", {}, h("h1", {}, "Timeline"), h("p", { class: "note" }, "What each actor ran, call by call, with a shade for each method; short calls that are close are drawn as one."),
    h("div", { class: "tools" }, take, file, why), found);
  return { title: "Timeline", element, close: () => {} };
}

// The times since a timeline began, at round ones.
function axis(whole) {
  const size = 10 ** Math.floor(Math.log10(whole / 5));
  const step = size * [1, 2, 5, 10].find((each) => 5 * size * each >= whole);
  const svg = drawing("svg", { class: "times", role: "img", "aria-label": `Times of ${seconds(whole)}` });
  for (let i = 0; i * step <= whole; i++) {
    const x = `${100 * i * step / whole}%`, time = drawing("text", { x, y: 12 });
    time.textContent = i ? seconds(i * step) : "0";
    svg.append(time, drawing("line", { x1: x, x2: x, y1: 16, y2: 20 }));
  }
  return svg;
}

// A lane of bars for one actor; a bar names the method that took most of it.
function lane(row) {
  const waited = row.waited_s == null ? "" : `, waited ${seconds(row.waited_s)} on average`;
  const late = row.more ? `; the last ${count(row.more)} are not drawn, but in the file` : "";
  const svg = drawing("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": `What ${row.name} ran` });
  const methods = [...new Set(row.bars.map((bar) => bar[2]))];
  for (const [begin, width, method, calls, took] of row.bars) {
    const shade = Math.max(0.3, 1 - 0.25 * methods.indexOf(method));
    const bar = drawing("rect", { x: 1000 * begin, width: Math.max(1, 1000 * width - 1), y: 0, height: 10, opacity: shade });
    const title = drawing("title", {});
    title.textContent = calls > 1 ? `${method}: ${count(calls)} calls in ${seconds(took)}` : `${method}: ${seconds(took)}`;
    bar.append(title);
    svg.append(bar);
  }
  return [h("dt", {}, h("a", { href: actorAddress(row.actor) }, row.name), h("small", {}, ` ${plural(row.calls, "call")}${waited}${late}`)), h("dd", {}, svg)];
}

function frames(calls, all, depth) {
  return h("ul", {}, calls.map((frame) => {
    const percent = Math.round(100 * frame.samples / all);
    const line = [share(frame.samples, all, `${percent} percent`), `${percent} % `, frame.name];
    if (!frame.calls.length) return h("li", {}, line);
    return h("li", {}, h("details", { open: percent >= 10 && depth < 40 },
      h("summary", {}, line), frames(frame.calls, all, depth + 1)));
  }));
}

function followLog(path) {
  const text = document.createTextNode(""), pane = h("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Output of the actor", "aria-live": "off" }, text);
  const follows = h("input", { type: "checkbox", checked: true });
  const state = h("span", { class: "soft" });
  let offset = -1, ended = false;
  async function look() {
    if (ended || !follows.checked) return;
    try {
      for (let pieces = 0; pieces < 20; pieces++) {
        const piece = await get(path, { offset });
        offset = piece.offset;
        if (piece.text) {
          const atBottom = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
          text.data = (text.data + piece.text.replace(/\x1b\[[0-9;]*m/g, "")).slice(-LOG_KEPT);
          if (atBottom) pane.scrollTop = pane.scrollHeight;
        }
        ended = piece.ended && !piece.text;
        if (!piece.text) break;
      }
      state.textContent = ended ? "The actor has ended." : text.data ? "" : "It has printed nothing yet.";
    } catch (error) {
      state.textContent = error.message;
    }
  }
  const close = repeat(look, 1);
  const element = h("div", {}, h("div", { class: "tools" }, h("label", {}, follows, " follow"), state), pane);
  return { element, close };
}

export const screens = [
  { path: "overview", nav: "Overview", group: "overview", show: showOverview },
  { path: "machines", nav: "Machines", group: "machines", show: showMachines },
  { path: "actors", nav: "Actors", group: "actors", show: showActors },
  { path: "actors/:id", group: "actors", show: showActor },
  { path: "timeline", nav: "Timeline", group: "timeline", show: showTimeline },
];
