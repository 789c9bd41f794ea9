/** Who gives to whom at a step of a layer: between regions, or from query groups to parts of the text. */

import type { RunData } from "./run.svelte";
import { percent } from "./values";

export interface Flow {
  from: string[];
  to: string[];
  /** [from][to] shares, mean of heads; NaN where nothing was measured. */
  table: number[][];
  /** From region to region, as a probe measured it; else worked out from query groups. */
  measured: boolean;
  /** What keys are told apart by: a region and a role of one name are two things. */
  kind: "region" | "role";
  /** The last of `to` is keys that parts added, which are neither. */
  added: boolean;
}

/** The flow of a run; without `regions`, from query groups even where regions were measured. */
export function flowOf(run: RunData, layer: number, step: number, regions = true): Flow | null {
  const { header } = run;
  if (run.flow && regions) {
    const n = header.regions.length;
    const at = (step * header.model.layers + layer) * n * n;
    const table = header.regions.map((_, q) => header.regions.map((_, k) => run.flow![at + q * n + k]));
    return { from: header.regions, to: header.regions, table, measured: true, kind: "region", added: false };
  }
  const held = run.layers.get(layer);
  if (!held) return null;
  const [groups, classes] = [header.groups.length, header.classes.length];
  const table = header.groups.map((_, g) => header.classes.map((_, c) => held.flow[(step * groups + g) * classes + c]));
  const { groups: from, classes: to, class_kind: kind, added } = header;
  return { from, to, table, measured: false, kind, added };
}

export interface Bar {
  name: string;
  /** Which of the parts it is: the colour. */
  at: number;
  y: number;
  h: number;
  /** Where its name stands. */
  label: number;
}

export interface Ribbon {
  /** Heights where it begins on the left and ends on the right. */
  from: number;
  to: number;
  h: number;
  at: number;
  says: string;
}

export interface Ribbons {
  left: Bar[];
  right: Bar[];
  ribbons: Ribbon[];
}

const GAP = 10;
/** Names closer than this would overlap. */
const LINE = 15;

/** Parts that give or are given anything. */
export function shown({ from, to, table }: Flow): { asked: number[]; given: number[] } {
  const asked = [...from.keys()].filter((q) => table[q].some((share) => share > 0));
  return { asked, given: [...to.keys()].filter((k) => asked.some((q) => table[q][k] > 0)) };
}

/** Bars on both sides and ribbons between them, as thick as the shares, on a height. */
export function ribbons(flow: Flow, height: number): Ribbons {
  const { asked, given } = shown(flow);
  const share = (q: number, k: number) => flow.table[q][k] || 0;
  const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);
  const total = sum(asked.flatMap((q) => given.map((k) => share(q, k)))) || 1;
  const unit = (height - GAP * (Math.max(asked.length, given.length) - 1)) / total;
  const left = bars(asked.map((q) => [q, flow.from[q], unit * sum(given.map((k) => share(q, k)))]), height);
  const right = bars(given.map((k) => [k, flow.to[k], unit * sum(asked.map((q) => share(q, k)))]), height);
  const used = given.map((_, at) => right[at].y);
  const found: Ribbon[] = [];
  asked.forEach((q, row) => {
    let from = left[row].y;
    given.forEach((k, at) => {
      const h = unit * share(q, k);
      const says = `${flow.from[q]} queries give ${percent(flow.table[q][k])} to ${flow.to[k]}`;
      found.push({ from, to: used[at], h, at: k, says });
      used[at] += h;
      from += h;
    });
  });
  return { left, right, ribbons: found };
}

function bars(parts: [number, string, number][], height: number): Bar[] {
  let y = 0;
  const found = parts.map(([at, name, h]) => {
    const bar = { at, name, y, h, label: 0 };
    y += h + GAP;
    return bar;
  });
  const labels = spaced(found.map((bar) => bar.y + bar.h / 2), LINE, LINE / 2, height - LINE / 2);
  return found.map((bar, at) => ({ ...bar, label: labels[at] }));
}

/** Ascending heights moved as little as need be to stand apart, between two ends where there is room. */
export function spaced(wanted: number[], gap: number, low: number, high: number): number[] {
  const found: number[] = [];
  wanted.forEach((y, at) => found.push(Math.max(y, at ? found[at - 1] + gap : low)));
  for (let at = found.length - 1; at >= 0; at--)
    found[at] = Math.min(found[at], at === found.length - 1 ? high : found[at + 1] - gap);
  return found;
}

/** [layer at hand][class] what a query group gives to each part of the text; mean of heads. */
export function byLayer(run: RunData, group: number, step: number): { layers: number[]; shares: number[][] } {
  const { header } = run;
  const [groups, classes] = [header.groups.length, header.classes.length];
  const layers = header.layers.filter((layer) => run.layers.has(layer));
  const from = (step * groups + group) * classes;
  const shares = layers.map((layer) => [...run.layers.get(layer)!.flow.subarray(from, from + classes)]);
  return { layers, shares };
}
