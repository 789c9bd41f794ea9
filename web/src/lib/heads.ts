/** Numbers by layer and head: what the page works out itself, fields of the trace, metric tables. */

import type { RunData } from "./run.svelte";
import type { Measure } from "./schema";
import { greatest, said, type Limits } from "./values";

export const DERIVED = {
  "greatest share": { unit: "share of attention", says: "share of the key that receives most" },
  "share on sinks": { unit: "share of attention", says: "share that all sinks receive" },
  "number of sinks": { unit: "keys", says: "keys that the rule calls sinks" },
  "top key": { unit: "position", says: "position of the key that receives most" },
} as const;

/** [layer, head] a measure at a step; NaN where it was not measured or is not in the page. */
export function headTable(run: RunData, measure: string, step: number): Float32Array {
  const { layers, heads } = run.header.model;
  const found = new Float32Array(layers * heads).fill(NaN);
  const field = run.measures.get(measure);
  if (field) return field.slice(...held(field, step, layers * heads));
  for (const [at, layer] of run.layers)
    for (let head = 0; head < heads; head++) {
      const from = step * heads + head;
      const value = {
        "greatest share": layer.headTopShare[from],
        "share on sinks": layer.headSinkShare[from],
        "number of sinks": layer.headSinks[from] < 0 ? NaN : layer.headSinks[from],
        "top key": layer.headTopKey[from] < 0 ? NaN : layer.headTopKey[from],
      }[measure];
      if (value !== undefined) found[at * heads + head] = value;
    }
  return found;
}

/** Where a step begins and ends in [step, layer, head]; what was measured over all steps is one. */
function held(field: Float32Array, step: number, size: number): [number, number] {
  return field.length === size ? [0, size] : [step * size, (step + 1) * size];
}

export const BESIDE = ["null", "lift", "low", "high", "n"] as const;

/** What a table has of a head beside its value; nothing for a field of the trace. */
export function besideValue(run: RunData, measure: string, step: number, at: number): number[] | null {
  const arrays = run.besides.get(measure);
  if (!arrays) return null;
  const { layers, heads } = run.header.model;
  const [from] = held(run.measures.get(measure)!, step, layers * heads);
  return BESIDE.map((name) => {
    const value = arrays[name][from + at];
    return name === "n" && value < 0 ? NaN : value; // absent counts are -1
  });
}

/** The same in words. */
export function nullOf(run: RunData, measure: string, step: number, at: number): string {
  const numbers = besideValue(run, measure, step, at);
  if (!numbers) return "";
  const [even, lift, low, high, n] = numbers;
  const words = [Number.isNaN(even) ? "no null" : `null ${said(even, 3)}`];
  if (!Number.isNaN(lift)) words.push(`lift ${said(lift, 3)}`);
  if (!Number.isNaN(low)) words.push(`interval ${said(low, 3)} to ${said(high, 3)}`);
  if (n >= 0) words.push(n === 1 ? "one prompt" : `${n} prompts`);
  return words.join(", ");
}

/** What a measure is, in a run that has it. */
export function measured(run: RunData, name: string): Pick<Measure, "unit" | "says" | "words"> | undefined {
  return Object.hasOwn(DERIVED, name) ? DERIVED[name as keyof typeof DERIVED] : run.header.measures.find((one) => one.name === name);
}

/** A number as it is known: rounded to eight bits in a sent page. */
export function known(run: RunData, name: string, value: number): string {
  return run.coarse.has(name) ? `≈ ${said(value, 3)}` : said(value, 4);
}

/** From zero, or what is below it, to the greatest number of some tables. */
export function headLimits(tables: Float32Array[]): Limits {
  const there = tables.flatMap((table) => [...table].filter((value) => !Number.isNaN(value)));
  const low = Math.min(there.length ? -greatest(there.map((value) => -value)) : 0, 0);
  const high = greatest(there);
  return { low, high: high > low ? high : low + 1, log: false };
}
