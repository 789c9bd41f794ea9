"use strict";
// Filters of the verdict table. Without this script everything is shown.
const form = document.getElementById("filters");
const rows = [...document.querySelectorAll("[data-claim]")];
const told = document.getElementById("told");
const total = rows.filter((row) => row.tagName === "TR").length;

function filter() {
  const paper = form.elements.paper.value;
  const verdict = form.elements.verdict.value;
  const origin = form.elements.origin.value;
  const words = form.elements.words.value.trim().toLowerCase();
  let shown = 0;
  for (const row of rows) {
    const fits =
      (!paper || row.dataset.paper === paper) &&
      (!verdict || row.dataset.verdict === verdict) &&
      (!origin || row.dataset.origin === origin) &&
      (!words || row.dataset.words.includes(words));
    row.hidden = !fits;
    if (fits && row.tagName === "TR") shown += 1;
  }
  told.textContent = `${shown} of ${total} claims shown`;
}

form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("reset", () => setTimeout(filter, 0));
form.addEventListener("submit", (event) => event.preventDefault());
// A link to a claim that is filtered away shows it.
window.addEventListener("hashchange", () => {
  const aim = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (aim && aim.closest("[hidden]")) {
    form.reset();
    setTimeout(() => aim.scrollIntoView(), 20);
  }
});
// Beside the runs (`anchorwatch view`), claims lead to those that they were judged on.
if (location.pathname.endsWith("/report")) {
  for (const link of document.querySelectorAll("a.runs")) link.hidden = false;
  for (const words of document.querySelectorAll("span.runs")) words.hidden = true;
}
