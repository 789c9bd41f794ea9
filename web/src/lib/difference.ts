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

/** The value is NaN where only the greatest of a bin is known, and with it no more than the bounds. */
export interface Between extends Rounded {
  exact: boolean;
  binned: boolean;
}

/** B less A: of shares, or of doublings over the null. */
export function between(a: Spot, b: Spot, scale: Scale): Between {
  const [x, y] = [numbered(a, scale), numbered(b, scale)];
  const how = { exact: x.exact && y.exact, binned: x.binned || y.binned };
  return { value: how.binned ? NaN : y.value - x.value, low: y.low - x.high, high: y.high - x.low, ...how };
}

function numbered({ run, place, step, position }: Spot, scale: Scale): Between {
  const read = reading(run, place, step, position);
  const { low, high, exact, binned } = read;
  if (scale !== "lift") return { value: read.share, low, high, exact, binned };
  const known = !Number.isNaN(read.null);
  const even = known
    ? { value: read.null, low: read.null, high: read.null }
    : run.even(place.layer, place.group, step, position);
  return {
    value: doublings(read.share / even.value),
    low: doublings(low / even.high),
    high: doublings(high / even.low),
    exact: exact && known,
    binned,
  };
}

/** As a person reads it: a rounded number with its bounds. */
export function spoken({ value, low, high, exact, binned }: Between): string {
  if (Number.isNaN(high)) return "not in both";
  const signed = (number: number, digits: number) => `${number > 0 ? "+" : ""}${said(number, digits)}`;
  if (binned) return `from ${signed(low, 3)} to ${signed(high, 3)}: of a bin only the greatest is known`;
  return exact ? signed(value, 4) : `≈ ${signed(value, 2)}, from ${signed(low, 3)} to ${signed(high, 3)}`;
}
