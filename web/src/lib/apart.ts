/** Two runs cell by cell: the top key by layer, a measure by head, flow between parts. */

import type { Columns } from "./align";
import type { Flow } from "./flow";
import { headTable, measured } from "./heads";
import { depth, type RunData } from "./run.svelte";

/** Position in B of each position of A, by identity; -1 where B has no such token. */
export function partners(columns: Columns, positions: number): Int32Array {
  const found = new Int32Array(positions).fill(-1);
  columns.a.forEach((one, at) => {
    if (one >= 0) found[one] = columns.b[at];
  });
  return found;
}

export interface TopsApart {
  /** [layer of A, step of A] share of the top key of B less that of A. */
  shares: Float32Array;
  /** [layer of A, step of A] whether the top key of B is another token. */
  moved: Uint8Array;
  /** How many cells are known in both, and how many of them have another token. */
  known: number;
  others: number;
}

/** The top keys of two runs; layers are matched by depth, steps as they are aligned. */
export function topsApart(
  a: RunData,
  b: RunData,
  { heads, columns, across }: { heads: [number | null, number | null]; columns: Columns; across: number[] },
): TopsApart {
  const [layers, steps] = [a.header.layers, a.header.steps];
  const partner = partners(columns, a.header.positions);
  const size = layers.length * steps;
  const found = { shares: new Float32Array(size).fill(NaN), moved: new Uint8Array(size), known: 0, others: 0 };
  layers.forEach((layer, row) => {
    const to = depth(layer, a, b);
    for (let step = 0; step < steps; step++) {
      const [key, share] = a.top(layer, heads[0], step);
      const [other, taken] = b.top(to, heads[1], across[step]);
      if (key < 0 || other < 0) continue;
      const at = row * steps + step;
      found.shares[at] = taken - share;
      found.moved[at] = Number(partner[key] !== other);
      found.known++;
      found.others += found.moved[at];
    }
  });
  return found;
}

export interface HeadsApart {
  /** [layer of A, head] B less A; of what has no size, 1 where the two are not the same. */
  values: Float32Array;
  /** The numbers of A, and those of B where they stand beside. */
  a: Float32Array;
  b: Float32Array;
  /** What has no size: verdicts, and places in the text. */
  named: boolean;
}

/** Why two runs cannot be compared head by head, in words; "" where they can. */
export function headsUnlike(a: RunData, b: RunData, measure: string): string {
  const [n, m] = [a.header.model.heads, b.header.model.heads];
  if (n !== m) return `A has ${n} heads in a layer and B ${m}: no head has a partner, so there is no difference to draw.`;
  const lack = [a, b].flatMap((run, at) => (measured(run, measure) ? [] : ["AB"[at]]));
  return lack.length ? `${lack.join(" and ")} ${lack.length > 1 ? "have" : "has"} no “${measure}”: choose a measure that both have.` : "";
}

/** A measure of two runs, head by head; layers are matched by depth, heads by number. */
export function headsApart(
  a: RunData,
  b: RunData,
  measure: string,
  { steps, columns }: { steps: [number, number]; columns: Columns },
): HeadsApart {
  const { layers, heads } = a.header.model;
  const [one, all] = [headTable(a, measure, steps[0]), headTable(b, measure, steps[1])];
  const two = new Float32Array(one.length).fill(NaN);
  for (let layer = 0; layer < layers; layer++) {
    const to = deep(layer, layers, b.header.model.layers);
    two.set(all.subarray(to * heads, (to + 1) * heads), layer * heads);
  }
  const [words, others] = [measured(a, measure)?.words, measured(b, measure)?.words];
  const placed = measure === "top key";
  const partner = placed ? partners(columns, a.header.positions) : null;
  const values = one.map((value, at) => {
    if (Number.isNaN(value) || Number.isNaN(two[at])) return NaN;
    if (partner) return Number(partner[value] !== two[at]);
    if (words || others) return Number(words?.[value] !== others?.[two[at]]);
    return two[at] - value;
  });
  return { values, a: one, b: two, named: placed || Boolean(words || others) };
}

/** The layer as deep in a network of other depth. */
function deep(layer: number, from: number, to: number): number {
  return from === to || from < 2 ? Math.min(layer, to - 1) : Math.round((layer / (from - 1)) * (to - 1));
}

export interface FlowApart {
  from: string[];
  to: string[];
  /** [from][to] shares of A, of B, and B less A. */
  a: number[][];
  b: number[][];
  table: number[][];
  /** Why parts of one name are not the same, in words; "" where they are. */
  unlike: string;
  /** What only one of them has, in words. */
  says: string[];
}

/** Flow of two runs between the parts that both have, by name and kind. */
export function flowApart(a: Flow, b: Flow): FlowApart {
  const both = (one: string[], two: string[]) => one.filter((name) => two.includes(name));
  const unlike = a.kind === b.kind ? "" : `keys are told apart by ${a.kind} in A and by ${b.kind} in B`;
  const added = a.added && b.added ? a.to.slice(-1) : [];
  const [from, to] = [both(a.from, b.from), unlike ? added : both(a.to, b.to)];
  const part = (flow: Flow) =>
    from.map((q) => to.map((k) => flow.table[flow.from.indexOf(q)][flow.to.indexOf(k)]));
  const [one, two] = [part(a), part(b)];
  const table = two.map((row, q) => row.map((value, k) => value - one[q][k]));
  const says =
    a.measured && b.measured
      ? only("regions", a.from, b.from)
      : [...only("queries that are", a.from, b.from), ...(unlike ? [unlike] : only("keys that are", a.to, b.to))];
  return { from, to, a: one, b: two, table, unlike, says };
}

function only(what: string, one: string[], two: string[]): string[] {
  const sides: [string, string[], string[]][] = [["A", one, two], ["B", two, one]];
  return sides.flatMap(([side, here, there]) => {
    const names = here.filter((name) => !there.includes(name));
    return names.length ? [`only ${side} has ${what} ${names.join(", ")}`] : [];
  });
}
