/** Sentences about a cell: the numbers under the pointer, exact where they can be. */

import type { RunData } from "./run.svelte";
import { ABSENT } from "./schema";
import type { Place } from "./place";
import { bounds, shares } from "./packet";
import { label } from "./text";
import { percent, said } from "./values";

export interface Reading {
  share: number;
  null: number;
  exact: boolean;
  /** The share is that of the greatest in its bin: its own is not in the page. */
  binned: boolean;
  /** The least and the greatest it may be: eight bits are rounded. */
  low: number;
  high: number;
}

/** What a position receives at a step: the stored number, a sink's, or its bin's eight bits. */
export function reading(run: RunData, place: Place, step: number, position: number): Reading {
  const { layer, head, group } = place;
  const { positions, width, bins } = run.header;
  const row = run.row(step, layer, head);
  if (row) {
    const at = group * positions + position;
    return exactly(row.shares[at], row.null[at]);
  }
  const part = width > 1 ? run.part(layer, head, group, Math.floor(position / run.header.part)) : undefined;
  if (part) {
    const at = step * part.cols + position - part.from;
    return exactly(part.shares[at], part.null[at]);
  }
  const tile = run.tile(layer, head, group);
  if (!tile) return { ...exactly(NaN, NaN), exact: false };
  for (let at = tile.sinks.first[step]; at < tile.sinks.first[step + 1]; at++)
    if (tile.sinks.key[at] === position) return exactly(tile.sinks.share[at], NaN);
  const code = tile.codes[step * bins + Math.floor(position / width)];
  const [low, high] = bounds(tile.most, code);
  const binned = width > 1;
  // Of a bin only the greatest is known: a position of it may have less.
  return { share: shares(tile.most)[code], null: NaN, exact: false, binned, low: binned && code ? 0 : low, high };
}

function exactly(share: number, even: number): Reading {
  return { share, null: even, exact: true, binned: false, low: share, high: share };
}

/** How a number was come by, for a column of a table. */
export function readAs({ exact, binned }: { exact: boolean; binned?: boolean }): string {
  if (exact) return "exact";
  return binned ? "8 bit, the greatest of its bin" : "8 bit";
}

/** The first and the last position of a bin. */
export function span(run: RunData, bin: number): [number, number] {
  const { width, positions } = run.header;
  return [bin * width, Math.min((bin + 1) * width, positions) - 1];
}

/** A run of positions as a table has it: `8`, or `8 to 11`. */
export function ranged([first, last]: [number, number]): string {
  return first === last ? String(first) : `${first} to ${last}`;
}

function shared(run: RunData, read: Reading, position: number): string {
  if (Number.isNaN(read.share)) return "not measured";
  if (read.exact) return `${said(read.share, 5)} of attention`;
  if (!read.binned) return `≈ ${said(read.share, 2)} of attention`;
  const range = ranged(span(run, Math.floor(position / run.header.width)));
  return `at most ≈ ${said(read.share, 2)} of attention, which the greatest of positions ${range} receives`;
}

export function isSink(run: RunData, place: Place, step: number, position: number): boolean {
  const tile = run.tile(place.layer, place.head, place.group);
  if (!tile) return false;
  for (let at = tile.sinks.first[step]; at < tile.sinks.first[step + 1]; at++)
    if (tile.sinks.key[at] === position) return true;
  return false;
}

export function roleAt(run: RunData, frame: number, position: number): number {
  return run.frames.role[frame * run.header.positions + position];
}

/** Why there is no picture of a layer, and what would give one. */
export function lacking({ header, missing }: RunData, layer: number, head: number | null, group: number): string {
  const said = missing.get(`tile-${layer}-${head ?? "mean"}-${group}`) ?? missing.get(`layer-${layer}`);
  if (said) return said;
  if (!header.layers.length)
    return "This run has no received attention to show: measure it with aw.replay(model, trace, probes=[aw.probes.received()]).";
  if ((head !== null || group !== header.group) && !header.on_demand.heads)
    return "Single heads and query groups are not in this page: `anchorwatch view` shows them. Choose the mean of heads and all queries.";
  return "loading …";
}

/** One line about a cell of the sink map. */
export function cell(run: RunData, place: Place, step: number, position: number): string {
  const { header, frames } = run;
  const parts = [`step ${step}`, `position ${position}`];
  const role = roleAt(run, step, position);
  if (role === ABSENT) return [...parts, "not there yet"].join(" · ");
  const now = run.token(step, position);
  const last = run.last(position);
  parts.push(`“${label(last)}”` + (last ? ` id ${last.id}` : ""));
  if (now && last && now.id !== last.id && header.roles[role] !== "masked") parts.push(`now “${label(now)}”`);
  parts.push(header.roles[role]);
  const region = frames.region[position];
  if (region >= 0) parts.push(header.regions[region]);
  const read = reading(run, place, step, position);
  parts.push(shared(run, read, position) + (read.null > 0 ? `, ${said(read.share / read.null, 3)} × even share` : ""));
  if (isSink(run, place, step, position)) parts.push("sink");
  const committed = frames.committed_at[position];
  if (committed >= 0) parts.push(`committed at step ${committed}`);
  const detail = last?.escaped ?? last?.bytes;
  if (detail) parts.push(`${last?.escaped ? "escaped" : "bytes"} ${detail.slice(0, 40)}`);
  return parts.join(" · ");
}

/** What keys receive that are no positions of the text. */
export function addedWords(run: RunData, { layer, head, group }: Place, step: number): string {
  const share = run.added(layer, head, group, step);
  const rounded = head !== null && run.coarse.has("sink_received") ? "≈ " : "";
  const what = Number.isNaN(share) ? "an unknown share" : `${rounded}${percent(share)} of attention`;
  return `step ${step} · added keys, which are no positions of the text, receive ${what}`;
}

/** What stands out at a step: for the picture's label and the live region. */
export function finding(run: RunData, place: Place): string {
  const { layer, head, step } = place;
  const where = `layer ${layer}, ${head === null ? "mean of heads" : `head ${head}`}, step ${step} of ${run.header.steps}`;
  if (!run.layers.has(layer)) return `${where}: not loaded`;
  const [key, share] = run.top(layer, head, step);
  if (key < 0) return `${where}: nothing was measured`;
  return `${where}: position ${key} “${label(run.last(key))}” receives most, ${percent(share)}`;
}

/** What a reader who does not see is told of a place: of the token that was chosen, else what stands out. */
export function announced(run: RunData, place: Place): string {
  if (place.token === null) return finding(run, place);
  return `${meaning(run, place)}: ${cell(run, place, place.step, place.token)}`;
}

export const UNITS = {
  log: "share of attention",
  share: "share of attention",
  lift: "times an even share",
} as const;

export function meaning(run: RunData, place: Place): string {
  const { model, groups, group } = run.header;
  const queries = place.group === group ? "" : `, ${groups[place.group]} queries only`;
  return place.head === null
    ? `layer ${place.layer}, mean of ${model.heads} heads${queries}`
    : `layer ${place.layer}, head ${place.head}${queries}`;
}

/** The Python that returns what the sink map shows. */
export function inPython(run: RunData, { layer, head, group }: Place): string {
  const of = JSON.stringify(run.header.groups[group] ?? "all");
  const one = head === null ? '.mean("head")' : `[:, ${head}]`;
  return `aw.read(${JSON.stringify(run.header.name)})["received"].sel(group=${of})[:, ${layer}]${one}`;
}
