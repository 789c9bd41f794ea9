/** Where the reader looks, in the address: everything after #, so that a link brings it back. */

export const SCALES = ["log", "share", "lift"] as const;
export const ALIGNS = ["decided", "step", "steps"] as const;
export const THEMES = ["auto", "light", "dark"] as const;
export const SINGLE = ["map", "layers", "text", "heads", "geometry", "flow", "exact"] as const;
export const DIFFERENCES = ["difference", "layers-difference", "heads-difference", "flow-difference"] as const;
export const PANELS = [...SINGLE, ...DIFFERENCES] as const;

/** Steps a second. */
export const SPEEDS = [1, 2, 4, 8, 16, 30] as const;
/** Whether keys of one character do something: who dictates or types elsewhere may want none. */
export const KEYS = ["on", "off"] as const;

export type Scale = (typeof SCALES)[number];
export type Align = (typeof ALIGNS)[number];
export type Theme = (typeof THEMES)[number];
export type PanelName = (typeof PANELS)[number];

export interface State {
  run: number;
  /** The run beside it; null is no other run. */
  beside: number | null;
  step: number;
  /** The step of B where it was chosen in B; null is the one beside A's. */
  stepB: number | null;
  layer: number;
  /** null is the mean over heads. */
  head: number | null;
  token: number | null;
  /** The row of the exact map; null is the token's own. */
  query: number | null;
  /** Whose attention, by name: another trace may have other groups; null is the run's first. */
  group: string | null;
  scale: Scale;
  align: Align;
  measure: string;
  /** A panel over the whole page. */
  panel: PanelName | null;
  /** Panels whose table is open. */
  tables: readonly PanelName[];
  theme: Theme;
  speed: (typeof SPEEDS)[number];
  /** The token that is sought. */
  find: string;
  keys: (typeof KEYS)[number];
}

export const FIRST: State = {
  run: 0,
  beside: null,
  step: 0,
  stepB: null,
  layer: 0,
  head: null,
  token: null,
  query: null,
  group: null,
  scale: "log",
  align: "decided",
  measure: "greatest share",
  panel: null,
  tables: [],
  theme: "auto",
  speed: 4,
  find: "",
  keys: "on",
};

export const LONGEST_HASH = 4096;
const VERSION = "1";
const NUMBER = /^\d{1,7}$/;

const LONGEST_WORD = 60;

type Numbers = "run" | "step" | "stepB" | "layer" | "head" | "token" | "query";
const WHOLE: readonly Numbers[] = ["run", "step", "stepB", "layer", "head", "token", "query"];
const NAMES: Partial<Record<keyof State, string>> = { beside: "with" };
/** No other run: a link must be able to say so where a page holds several. */
const NONE = "none";
/** The table of every panel. */
const ALL = "1";

/** The part of an address after #; what is as at first is left out. */
export function encode(state: State, runs = 1): string {
  const said = new URLSearchParams({ v: VERSION });
  for (const [name, value] of Object.entries(state) as [keyof State, unknown][]) {
    // A page begins at a layer of its own, and one of several runs with two of them.
    const owned = name === "layer" || (name === "beside" && runs > 1);
    if (spelled(value) === spelled(FIRST[name]) && !owned) continue;
    said.set(NAMES[name] ?? name, spelled(value));
  }
  return said.toString();
}

function spelled(value: unknown): string {
  if (Array.isArray(value)) return value.length === PANELS.length ? ALL : value.join(",");
  return String(value ?? NONE);
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
  pick(said, "keys", KEYS, (value) => (state.keys = value));
  const speed = SPEEDS.find((one) => String(one) === said.get("speed"));
  state.speed = speed ?? FIRST.speed;
  const open = said.get("tables");
  state.tables = PANELS.filter((name) => open === ALL || open?.split(",").includes(name));
  for (const name of ["measure", "group", "find"] as const)
    if (said.has(name)) state[name] = said.get(name)!.slice(0, LONGEST_WORD);
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
  groups: string[];
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
  within("query", limits.positions - 1);
  if (held.group !== null && !limits.groups.includes(held.group)) {
    const able = limits.groups.length ? `it has ${limits.groups.join(", ")}` : "it has no query groups";
    notices.push(`queries “${held.group}” are not in this run: ${able}`);
    held.group = null;
  }
  if (limits.layers.length && !limits.layers.includes(held.layer)) {
    const nearest = limits.layers.reduce((a, b) =>
      Math.abs(b - held.layer) < Math.abs(a - held.layer) ? b : a,
    );
    say("layer", held.layer, nearest);
    held.layer = nearest;
  }
  return { state: held, notices };
}
