/** Where the reader looks, in the address: everything after #, so that a link brings it back. */

export const SCALES = ["log", "share", "lift"] as const;
export const ALIGNS = ["decided", "step", "steps"] as const;
export const THEMES = ["auto", "light", "dark"] as const;
export const SINGLE = ["map", "layers", "text", "heads", "geometry", "flow", "exact"] as const;
export const DIFFERENCES = ["difference", "layers-difference", "heads-difference", "flow-difference"] as const;
export const PANELS = [...SINGLE, ...DIFFERENCES] as const;

export type Scale = (typeof SCALES)[number];
export type Align = (typeof ALIGNS)[number];
export type Theme = (typeof THEMES)[number];
export type PanelName = (typeof PANELS)[number];

export interface State {
  run: number;
  /** The run beside it; null is no other run. */
  beside: number | null;
  step: number;
  layer: number;
  /** null is the mean over heads. */
  head: number | null;
  token: number | null;
  /** Whose attention; null is that of all queries. */
  group: number | null;
  scale: Scale;
  align: Align;
  measure: string;
  /** A panel over the whole page. */
  panel: PanelName | null;
  tables: boolean;
  theme: Theme;
}

export const FIRST: State = {
  run: 0,
  beside: null,
  step: 0,
  layer: 0,
  head: null,
  token: null,
  group: null,
  scale: "log",
  align: "decided",
  measure: "greatest share",
  panel: null,
  tables: false,
  theme: "auto",
};

export const LONGEST_HASH = 4096;
const VERSION = "1";
const NUMBER = /^\d{1,7}$/;

type Numbers = "run" | "step" | "layer" | "group" | "head" | "token";
const WHOLE: readonly Numbers[] = ["run", "step", "layer", "group", "head", "token"];
const NAMES: Partial<Record<keyof State, string>> = { beside: "with" };
/** No other run: a link must be able to say so where a page holds several. */
const NONE = "none";

/** The part of an address after #; what is as at first is left out. */
export function encode(state: State, runs = 1): string {
  const said = new URLSearchParams({ v: VERSION });
  for (const [name, value] of Object.entries(state) as [keyof State, unknown][]) {
    // A page begins at a layer of its own, and one of several runs with two of them.
    const owned = name === "layer" || (name === "beside" && runs > 1);
    if (value === FIRST[name] && !owned) continue;
    said.set(NAMES[name] ?? name, value === true ? "1" : String(value ?? NONE));
  }
  return said.toString();
}

export interface Read {
  state: State;
  /** What could not be taken as it stood. */
  notices: string[];
}

/** The state an address names in a page of so many runs. Foreign words are ignored, bad numbers said. */
export function decode(hash: string, runs = 1): Read {
  const state: State = { ...FIRST, beside: another(FIRST.run, runs) };
  const notices: string[] = [];
  if (hash.length > LONGEST_HASH) return { state, notices: ["the link is too long and was ignored"] };
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const version = said.get("v");
  if (version !== null && version !== VERSION)
    notices.push(`the link is of version ${version.slice(0, 12)}; this page reads ${VERSION}`);
  for (const name of WHOLE) {
    const word = said.get(name);
    if (word === null) continue;
    if (NUMBER.test(word)) state[name] = Number(word);
    else notices.push(`${name}=${word.slice(0, 20)} is not a whole number and was ignored`);
  }
  pair(said, state, runs, notices);
  pick(said, "scale", SCALES, (value) => (state.scale = value));
  pick(said, "align", ALIGNS, (value) => (state.align = value));
  pick(said, "theme", THEMES, (value) => (state.theme = value));
  pick(said, "panel", PANELS, (value) => (state.panel = value));
  state.tables = said.get("tables") === "1";
  state.measure = said.get("measure")?.slice(0, 60) ?? FIRST.measure;
  return { state, notices };
}

/** Which runs are looked at: a link may name none, itself, or one that is not there. */
function pair(said: URLSearchParams, state: State, runs: number, notices: string[]): void {
  if (state.run >= runs) {
    notices.push(`there is no run ${state.run}: showing 0`);
    state.run = 0;
  }
  state.beside = another(state.run, runs);
  const word = said.get("with");
  if (word === null) return;
  if (word === NONE) state.beside = null;
  else if (!NUMBER.test(word)) notices.push(`with=${word.slice(0, 20)} is neither a whole number nor ${NONE} and was ignored`);
  else if (Number(word) < runs) state.beside = Number(word);
  else {
    notices.push(`there is no run ${word} to compare with`);
    state.beside = null;
  }
}

/** The run that is seen beside one if nothing is said: the first other. */
function another(run: number, runs: number): number | null {
  if (runs < 2) return null;
  return run === 0 ? 1 : 0;
}

function pick<T extends string>(
  said: URLSearchParams,
  name: string,
  able: readonly T[],
  put: (value: T) => void,
): void {
  const word = said.get(name);
  const found = able.find((one) => one === word);
  if (found !== undefined) put(found);
}

export interface Limits {
  steps: number;
  layers: number[];
  heads: number;
  positions: number;
  groups: number;
}

/** The nearest state that a run has, and what was changed. */
export function clamped(state: State, limits: Limits): Read {
  const held = { ...state };
  const notices: string[] = [];
  const say = (name: string, was: number, is: number | null) =>
    notices.push(`${name} ${was} is not in this run: showing ${is === null ? "none" : is}`);
  const within = (name: Numbers, most: number) => {
    const value = held[name];
    if (value === null || value <= most) return;
    const nearest = Math.max(most, 0);
    say(name, value, nearest);
    held[name] = nearest;
  };
  within("step", limits.steps - 1);
  within("head", limits.heads - 1);
  within("token", limits.positions - 1);
  within("group", limits.groups - 1);
  if (limits.layers.length && !limits.layers.includes(held.layer)) {
    const nearest = limits.layers.reduce((a, b) =>
      Math.abs(b - held.layer) < Math.abs(a - held.layer) ? b : a,
    );
    say("layer", held.layer, nearest);
    held.layer = nearest;
  }
  return { state: held, notices };
}
