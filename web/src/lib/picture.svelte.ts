/** A panel as a picture to keep: what is seen, its title, and which run it is of. */

import { flushSync, getContext, setContext } from "svelte";

/** Canvases are drawn this fine while a picture is taken; 0 is as fine as the screen. */
export const fine = $state({ ratio: 0 });

const RATIO = 2;
const MOST_PIXELS = 60_000_000;
const CREDIT = "credit";
/** What is for hands, not for a picture. */
const TOOLS = "button, select, input, .tools, .table, .under, .sr, [data-tool]";
// XML has no words for these, whatever a token says.
const NO_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ud800-\udfff\ufffe\uffff]/gu;

export function credited(words: () => string): void {
  setContext(CREDIT, words);
}

export function credit(): () => string {
  return getContext(CREDIT) ?? (() => "");
}

export function save(data: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The panel in PNG, twice as fine as the page, whole even where the page scrolls. */
export async function png(panel: HTMLElement, words: string): Promise<Blob> {
  const { text, width, height } = finely(() => drawing(panel, words));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const ratio = width * height * RATIO ** 2 > MOST_PIXELS ? 1 : RATIO;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("the browser made no picture"))), "image/png"),
  );
}

function finely<T>(draw: () => T): T {
  fine.ratio = RATIO;
  flushSync();
  try {
    return draw();
  } finally {
    fine.ratio = 0;
    flushSync();
  }
}

/** The panel's elements inside an SVG, with their styles: a browser draws it as it draws the page. */
function drawing(panel: HTMLElement, words: string): { text: string; width: number; height: number } {
  const copy = copied(panel, words);
  const stage = document.createElement("div");
  stage.style.cssText = `position:absolute;left:-20000px;top:0;width:${panel.clientWidth + 2}px`;
  stage.append(copy);
  document.body.append(stage);
  const [width, height] = [Math.ceil(copy.offsetWidth), Math.ceil(copy.offsetHeight)];
  stage.remove();
  const root = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  root.setAttribute("width", String(width));
  root.setAttribute("height", String(height));
  root.dataset.theme = document.documentElement.dataset.theme ?? "light";
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = rules();
  const frame = document.createElementNS("http://www.w3.org/2000/svg", "foreignObject");
  frame.setAttribute("width", "100%");
  frame.setAttribute("height", "100%");
  frame.append(copy);
  root.append(style, frame);
  return { text: new XMLSerializer().serializeToString(root).replace(NO_XML, "\ufffd"), width, height };
}

function copied(panel: HTMLElement, words: string): HTMLElement {
  const copy = panel.cloneNode(true) as HTMLElement;
  const drawn = panel.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((canvas, at) => {
    const image = document.createElement("img");
    image.className = canvas.className;
    image.style.cssText = "position:absolute;inset:0;width:100%;height:100%";
    if (drawn[at].width && drawn[at].height) image.src = drawn[at].toDataURL();
    canvas.replaceWith(image);
  });
  for (const tool of copy.querySelectorAll(TOOLS)) tool.remove();
  for (const box of copy.querySelectorAll<HTMLElement>("[data-scrolls]")) box.style.maxHeight = "none";
  copy.classList.remove("widest");
  copy.style.cssText = "border:0;border-radius:0;margin:0;color:var(--ink)";
  const line = document.createElement("p");
  line.className = "note";
  line.textContent = words;
  copy.append(line);
  return copy;
}

/** The styles of the page, all of them ours. */
function rules(): string {
  return [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText)).join("\n");
}

/** Charts that are SVG already, side by side as on the page, with the colours they have: for papers. */
export function svg(charts: SVGSVGElement[], words: string): Blob {
  const boxes = charts.map((chart) => chart.getBoundingClientRect());
  const [left, top] = [Math.min(...boxes.map((box) => box.left)), Math.min(...boxes.map((box) => box.top))];
  const [right, bottom] = [Math.max(...boxes.map((box) => box.right)), Math.max(...boxes.map((box) => box.bottom))];
  const root = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  root.setAttribute("viewBox", `0 0 ${right - left} ${bottom - top}`);
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = words;
  root.append(title, ...charts.map((chart, at) => worn(chart, boxes[at].left - left, boxes[at].top - top)));
  const text = new XMLSerializer().serializeToString(root).replace(NO_XML, "\ufffd");
  return new Blob([text], { type: "image/svg+xml" });
}

const WORN = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray"],
  ...["font-family", "font-size", "font-weight", "text-anchor"],
];

/** A copy that needs no style sheet. */
function worn(chart: SVGSVGElement, x: number, y: number): SVGSVGElement {
  const copy = chart.cloneNode(true) as SVGSVGElement;
  const { width, height } = chart.getBoundingClientRect();
  for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, String(value));
  const kept = [...copy.querySelectorAll("*")];
  [...chart.querySelectorAll("*")].forEach((one, at) => {
    const style = getComputedStyle(one);
    kept[at].removeAttribute("class");
    kept[at].setAttribute("style", WORN.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  });
  return copy;
}
