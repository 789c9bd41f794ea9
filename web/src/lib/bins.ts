/** Bins: of a long text a column is several neighbouring positions, drawn as the greatest of them. */

import { shares } from "./packet";
import type { Place } from "./place";
import type { RunData } from "./run.svelte";
import { ABSENT } from "./schema";
import { said } from "./values";
import { cell, ranged, roleAt, span } from "./words";

export interface Greatest {
  /** Which position it is; -1 where the page knows only how much it receives. */
  position: number;
  share: number;
  exact: boolean;
}

/** What receives most in a bin at a step: by the stored numbers, else by the sinks, else by the bin's eight bits. */
export function greatestIn(run: RunData, { layer, head, group }: Place, step: number, bin: number): Greatest {
  const { positions, bins } = run.header;
  const [first, last] = span(run, bin);
  const found = { position: -1, share: NaN, exact: true };
  const row = run.row(step, layer, head);
  if (row) {
    for (let at = first; at <= last; at++) surpass(found, at, row.shares[group * positions + at]);
    return found;
  }
  const tile = run.tile(layer, head, group);
  if (!tile) return { ...found, exact: false };
  // Whatever a rule calls a sink, a greater share at the same step is one too.
  for (let at = tile.sinks.first[step]; at < tile.sinks.first[step + 1]; at++) {
    const key = tile.sinks.key[at];
    if (key >= first && key <= last) surpass(found, key, tile.sinks.share[at]);
  }
  if (found.position >= 0) return found;
  const share = shares(tile.most)[tile.codes[step * bins + bin]];
  return { position: first === last && !Number.isNaN(share) ? first : -1, share, exact: false };
}

function surpass(found: Greatest, position: number, share: number): void {
  if (share > found.share || (found.position < 0 && !Number.isNaN(share))) {
    found.position = position;
    found.share = share;
  }
}

/** One line about a column of the sink map at a step: of a bin, its range and what is greatest in it. */
export function column(run: RunData, place: Place, step: number, bin: number): string {
  const [first, last] = span(run, bin);
  if (first === last) return cell(run, place, step, first);
  const { position, share } = greatestIn(run, place, step, bin);
  const range = `positions ${ranged([first, last])}`;
  if (position >= 0) return `${cell(run, place, step, position)} · greatest of ${range}`;
  const there = Array.from({ length: last - first + 1 }, (_, at) => first + at).some((at) => roleAt(run, step, at) !== ABSENT);
  if (Number.isNaN(share)) return `step ${step} · ${range} · ${there ? "not measured" : "not there yet"}`;
  return `step ${step} · ${range} · the greatest of them receives ≈ ${said(share, 2)} of attention`;
}
