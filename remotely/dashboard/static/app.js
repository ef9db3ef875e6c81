// The frame of the page: routing by the hash of the URL, navigation, the theme.

import { h } from "/static/ui.js";

const panels = document.querySelector('meta[name="panels"]').content.split(" ").filter(Boolean);
const main = document.getElementById("main"), nav = document.getElementById("nav");
const state = document.getElementById("state");

// Each panel's module exports `screens`: {path, nav, show(params, query)}; `show` returns
// {title, element, close}.  In a path, `:name` matches any segment; as the last, all that follow.
const modules = await Promise.all(panels.map((name) => import(`/static/${name}.js`)));
const screens = modules.flatMap((module, i) => module.screens.map((screen) => ({ ...screen, panel: panels[i] })));
let close = () => {}, first = true, current = "";

function setStatus(text, isBad) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("bad", Boolean(isBad));
}
for (const module of modules) module.begin?.(setStatus);

function matched(path) {
  const words = path.split("/").map(decodeURIComponent);
  for (const screen of screens) {
    const wanted = screen.path.split("/"), params = {};
    if (words.length < wanted.length || (words.length > wanted.length && !wanted.at(-1).startsWith(":"))) continue;
    const fits = wanted.every((word, i) => {
      if (!word.startsWith(":")) return word === words[i];
      params[word.slice(1)] = i === wanted.length - 1 ? words.slice(i).join("/") : words[i];
      return true;
    });
    if (fits) return { screen, params };
  }
  return null;
}

function go() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const found = matched(path || screens[0].path) || { screen: screens[0], params: {} };
  close();
  const shown = found.screen.show(found.params, new URLSearchParams(query || ""));
  close = shown.close || (() => {});
  document.title = `${shown.title} – remotely`;
  main.dataset.panel = found.screen.panel;
  main.replaceChildren(shown.element);
  for (const link of nav.children) {
    if (link.dataset.group === found.screen.group) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!first && current !== path) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  current = path;
  first = false;
}

for (const screen of screens) {
  if (screen.nav) nav.append(h("a", { href: `#/${screen.path}`, "data-group": screen.group }, screen.nav));
}
window.addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("keydown", (event) => {
  const search = main.querySelector('input[type="search"]');
  if (event.key === "/" && search && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    search.focus();
  }
});

// --- light and dark ----------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const themes = ["auto", "light", "dark"], button = document.getElementById("theme");
let theme = localStorage.getItem("theme") || "auto";

function paint() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  button.textContent = `Theme: ${theme}`;
  document.dispatchEvent(new Event("painted"));
}
button.addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  localStorage.setItem("theme", theme);
  paint();
});
dark.addEventListener("change", paint);
paint();
go();
