// The scores of search results: those of Sphinx, with pages for users before those for contributors.

const INSIDE = /^(decisions\/|design$|contributing$|changelog$)/;
const BELOW = 1000; // more than any page has

var Scorer = {
  score: ([page, , , , score]) => (INSIDE.test(page) ? score - BELOW : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
