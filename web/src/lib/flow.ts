/** Who gives to whom at a step of a layer: between regions, or from query groups to parts of the text. */

import type { RunData } from "./run.svelte";

export interface Flow {
  from: string[];
  to: string[];
  /** [from][to] shares, mean of heads; NaN where nothing was measured. */
  table: number[][];
  /** From region to region, as a probe measured it; else worked out from query groups. */
  measured: boolean;
}

/** The flow of a run; without `regions`, from query groups even where regions were measured. */
export function flowOf(run: RunData, layer: number, step: number, regions = true): Flow | null {
  const { header } = run;
  if (run.flow && regions) {
    const n = header.regions.length;
    const at = (step * header.model.layers + layer) * n * n;
    const table = header.regions.map((_, q) => header.regions.map((_, k) => run.flow![at + q * n + k]));
    return { from: header.regions, to: header.regions, table, measured: true };
  }
  const held = run.layers.get(layer);
  if (!held) return null;
  const [groups, classes] = [header.groups.length, header.classes.length];
  const table = header.groups.map((_, g) => header.classes.map((_, c) => held.flow[(step * groups + g) * classes + c]));
  return { from: header.groups, to: header.classes, table, measured: false };
}
