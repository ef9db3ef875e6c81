// A screen with a table that the server sorts, searches and paginates.

import { count, get, h, remember, table } from "/static/ui.js";

// path      of the screen, and of the rows: /api/PATH
// columns, key   those of the table; `nothing` is the text shown if it has no rows
// sort      the default column
// renew     renew(look) calls `look` now and on each update, and returns a function that stops it
// head, tools, foot   elements above the table, beside the search, and below the table
// heard     heard(page) is called with each response
// extra     further parameters of the query, which stay in the address
export function paged(title, { path, columns, key, nothing, sort = columns[0].key, renew, head = [], tools = [], foot = [], heard, extra = {} }) {
  return (params, asked) => {
    const query = { sort: asked.get("sort") || sort, q: asked.get("q") || "", after: Number(asked.get("after") || 0) };
    let turn = 0, size = 200;
    const place = h("span", { role: "status", class: "soft" });
    const search = h("input", { type: "search", "aria-label": `Search ${path}`, placeholder: "Search  ( / )", value: query.q });
    const back = h("button", { type: "button", onclick: () => turnTo(-1) }, "Previous");
    const on = h("button", { type: "button", onclick: () => turnTo(1) }, "Next");
    const pages = h("span", { class: "end", hidden: true }, back, " ", on);
    const shown = table(columns, key, title, (column) => {
      const numeric = columns.find((each) => each.key === column).number;
      const ways = numeric ? [`-${column}`, column] : [column, `-${column}`];
      query.sort = query.sort === ways[0] ? ways[1] : ways[0];
      query.after = 0;
      change();
    });

    function turnTo(by) {
      query.after = Math.max(0, query.after + by * size);
      change();
    }
    search.addEventListener("input", () => {
      query.q = search.value;
      query.after = 0;
      change();
    });
    // Not on each look, which may happen between a click on a link and the navigation.
    function change() {
      remember(path, { ...extra, ...query, sort: query.sort === sort ? "" : query.sort });
      look();
    }

    async function look() {
      const mine = ++turn;
      try {
        const page = await get(`/api/${path}`, { ...extra, ...query });
        if (mine !== turn) return; // a later request is under way
        const last = page.after + page.rows.length;
        size = Math.max(size, page.rows.length);
        place.textContent = page.found
          ? `${count(page.after + 1)}–${count(last)} of ${count(page.found)}${page.found < page.total ? `, ${count(page.total)} in total` : ""}`
          : `none of ${count(page.total)}`;
        pages.hidden = !page.after && last >= page.found;
        back.disabled = page.after === 0;
        on.disabled = last >= page.found;
        shown.show(page.rows, query.sort, query.q ? "Nothing matches." : nothing);
        heard?.(page);
      } catch (error) {
        if (mine === turn) place.textContent = error.message;
      }
    }
    const element = h("div", {}, h("h1", {}, title), head,
      h("div", { class: "tools" }, search, place, tools, pages), shown.element, foot);
    return { title, element, close: renew(look) };
  };
}
