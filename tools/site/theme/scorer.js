/* Ranks search results: pages that answer a question before lessons and long lists. */
const PAGE_WEIGHTS = [["causes/", 12], ["start/", 10], ["what_ifs/", 8], ["symptoms", 8], ["faq", 8], ["api/", 4],
  ["reference/", 4], ["course/", -4], ["answers", -12], ["claims", -12], ["coverage", -12], ["changelog", -12]];

var Scorer = {
  score: (result) => {
    const [page, , , , score] = result;
    const weight = PAGE_WEIGHTS.find(([start]) => page.startsWith(start));
    return score + (weight ? weight[1] : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
