/** One number less another, and how far rounding may have moved it. */

import type { Place } from "./place";
import type { RunData, Rounded } from "./run.svelte";
import type { Scale } from "./state";
import { said } from "./values";
import { reading } from "./words";

/** Doublings below this are as good as none. */
const FEWEST = 2 ** -10;

export function doublings(lift: number): number {
  return Math.log2(Math.max(lift, FEWEST));
}

export interface Spot {
  run: RunData;
  place: Place;
  step: number;
  position: number;
}

export interface Between extends Rounded {
  exact: boolean;
}

/** B less A: of shares, or of doublings over the null. */
export function between(a: Spot, b: Spot, scale: Scale): Between {
  const [x, y] = [numbered(a, scale), numbered(b, scale)];
  return { value: y.value - x.value, low: y.low - x.high, high: y.high - x.low, exact: x.exact && y.exact };
}

function numbered({ run, place, step, position }: Spot, scale: Scale): Between {
  const read = reading(run, place, step, position);
  if (scale !== "lift") return { value: read.share, low: read.low, high: read.high, exact: read.exact };
  const known = !Number.isNaN(read.null);
  const even = known
    ? { value: read.null, low: read.null, high: read.null }
    : run.even(place.layer, place.group, step, position);
  return {
    value: doublings(read.share / even.value),
    low: doublings(read.low / even.high),
    high: doublings(read.high / even.low),
    exact: read.exact && known,
  };
}

/** As a person reads it: a rounded number with its bounds. */
export function spoken({ value, low, high, exact }: Between): string {
  if (Number.isNaN(value)) return "not in both";
  const signed = (number: number, digits: number) => `${number > 0 ? "+" : ""}${said(number, digits)}`;
  return exact ? signed(value, 4) : `≈ ${signed(value, 2)}, from ${signed(low, 3)} to ${signed(high, 3)}`;
}
