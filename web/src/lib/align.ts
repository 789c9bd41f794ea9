/** Two runs on one cursor: which step of the one is beside a step of the other, which token. */

import type { Align } from "./state";

export interface Clocked {
  steps: number;
  /** Share of the answer decided before each step, and after the last. */
  progress: number[];
}

/** The step of `other` that stands beside a step of `one`; of equals the first. */
export function beside(one: Clocked, other: Clocked, step: number, align: Align): number {
  const last = other.steps - 1;
  if (align === "step") return Math.min(step, last);
  if (align === "steps") return one.steps < 2 ? 0 : Math.round((step / (one.steps - 1)) * last);
  const clock = one.progress[step];
  let found = 0;
  for (let at = 1; at <= last; at++)
    if (Math.abs(other.progress[at] - clock) < Math.abs(other.progress[found] - clock) - 1e-12) found = at;
  return found;
}

/** The alignment in words, for the page; a step of B that was chosen in B is said to be. */
export function inWords(align: Align, one: Clocked, other: Clocked, step: number, to: number): string {
  const share = (run: Clocked, at: number) => `${Math.round(100 * run.progress[at])} % decided`;
  const how = {
    decided: "aligned by the share of tokens decided",
    step: "aligned by step",
    steps: "aligned by the share of steps taken",
  }[align];
  const pair = `step ${step} of A (${share(one, step)}) is beside step ${to} of B (${share(other, to)})`;
  return to === beside(one, other, step, align) ? `${how}: ${pair}` : `${pair}, which was chosen; other steps are ${how}`;
}

interface Headed {
  layers: number[];
  groups: string[];
  model: { source: string; layers: number; heads: number };
}

interface Placed {
  layer: number;
  head: number | null;
  group: number;
}

/** What else is not the same in both runs at a place, in words: layers, heads, query groups. */
export function besides(one: Headed, other: Headed, at: Placed, to: Placed): string[] {
  const said: string[] = [];
  const [n, m] = [one.model.layers, other.model.layers];
  const pair = `layer ${at.layer} of A is beside layer ${to.layer} of B`;
  if (n !== m) said.push(`${pair}: A has ${n} layers and B ${m}, matched by depth, first to first and last to last`);
  else if (at.layer !== to.layer && other.layers.length) said.push(`${pair}, the nearest that is at hand`);
  if (at.head !== null && to.head === null) said.push(`B has no head ${at.head}: the mean of its ${other.model.heads} is shown`);
  else if (at.head !== null && one.model.source !== other.model.source)
    said.push(`head ${at.head} of both, by number only`);
  const [asked, shown] = [one.groups[at.group], other.groups[to.group]];
  if (asked !== undefined && shown !== undefined && asked !== shown)
    said.push(`B was not measured for ${asked} queries: ${shown} are shown`);
  return said;
}

export interface Spelled {
  /** Text of each position in the end. */
  texts: string[];
  /** Positions the run was to write, in order. */
  answer: number[];
}

export interface Columns {
  /** Position in A and in B of each column; -1 where the token is only in the other. */
  a: number[];
  b: number[];
  both: number;
  says: string;
}

export const MOST_CELLS = 20_000_000;

/**
 * Given tokens are matched by what they say, in order; answer positions by their place in the answer,
 * since what stands there is what the runs differ in.
 */
export function columns(one: Spelled, two: Spelled): Columns {
  const [a, b] = [names(one), names(two)];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const pairs: [number, number][] = [];
  for (let at = 0; at < head; at++) pairs.push([at, at]);
  const [n, m] = [a.length - head - tail, b.length - head - tail];
  const tooLong = n * m > MOST_CELLS;
  if (!tooLong) for (const [i, j] of common(a.slice(head, head + n), b.slice(head, head + m))) pairs.push([head + i, head + j]);
  for (let at = tail; at > 0; at--) pairs.push([a.length - at, b.length - at]);
  return laid(pairs, a.length, b.length, tooLong);
}

function names(run: Spelled): string[] {
  const place = new Map(run.answer.map((position, at) => [position, at]));
  return run.texts.map((text, position) => {
    const at = place.get(position);
    return at === undefined ? `given ${text}` : `answer ${at}`;
  });
}

/** The longest common subsequence, as index pairs. */
function common(a: string[], b: string[]): [number, number][] {
  const width = b.length + 1;
  const table = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i * width + j] =
        a[i] === b[j]
          ? table[(i + 1) * width + j + 1] + 1
          : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
  const found: [number, number][] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) found.push([i++, j++]);
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i++;
    else j++;
  }
  return found;
}

function laid(pairs: [number, number][], n: number, m: number, tooLong: boolean): Columns {
  const found: Columns = { a: [], b: [], both: pairs.length, says: "" };
  let [i, j] = [0, 0];
  const until = (to: number, too: number) => {
    for (; i < to; i++) (found.a.push(i), found.b.push(-1));
    for (; j < too; j++) (found.a.push(-1), found.b.push(j));
  };
  for (const [x, y] of pairs) {
    until(x, y);
    found.a.push(i++);
    found.b.push(j++);
  }
  until(n, m);
  const extra = [n - pairs.length, m - pairs.length];
  found.says =
    `${pairs.length} positions are matched: given tokens by what they say, the answer by its places` +
    (extra[0] || extra[1] ? `; ${extra[0]} only in A, ${extra[1]} only in B` : "") +
    (tooLong ? "; the middle is too long to match, so only the beginning and the end are" : "");
  return found;
}
