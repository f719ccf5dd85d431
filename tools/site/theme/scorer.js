/* Ranks search results: pages that answer a question before lessons and long lists, and first of all the page that the
   query names: its file name ("no workers" for causes/no_workers), or what users write in code instead of it. */
const PAGE_WEIGHTS = [["causes/", 12], ["start/", 10], ["what_ifs/", 8], ["symptoms", 8], ["faq", 8], ["api/", 4],
  ["reference/", 4], ["course/", -4], ["answers", -12], ["claims", -12], ["coverage", -12], ["changelog", -12]];
const NAMED_IN_CODE = {"causes/no_workers": "num_workers=0"};
const NAMED_WEIGHT = 60;

const query = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase();
const isNamed = (page) => {
  const words = page.split("/").pop().split("_");
  const queried = query.split(/[^a-z0-9]+/);
  const isTitle = words.length > 1 && words.every((word) => queried.includes(word));
  const code = NAMED_IN_CODE[page];
  return isTitle || (code && query.replaceAll(" ", "").includes(code));
};

var Scorer = {
  score: (result) => {
    const [page, , , , score] = result;
    const weight = PAGE_WEIGHTS.find(([start]) => page.startsWith(start));
    return score + (weight ? weight[1] : 0) + (isNamed(page) ? NAMED_WEIGHT : 0);
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
