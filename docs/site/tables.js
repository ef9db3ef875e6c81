// Writes the heads of a table's columns into its cells, for the cards that tables.css makes of it
// on a phone.  Of two columns, neither needs one: the first is the title of its card.

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    if (heads.length < 3) continue;
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, i) => {
        if (i && heads[i] && cell.textContent.trim()) cell.dataset.head = heads[i];
      });
    }
  }
  const wide = 1200; // pixels of a picture that a phone would shrink to nothing
  for (const picture of document.querySelectorAll("article p > img")) {
    const mark = () => picture.classList.toggle("wide", picture.naturalWidth > wide);
    picture.complete ? mark() : picture.addEventListener("load", mark);
  }
});
