/** Numbers on their way to colours: scales, limits, and pixels that hide no sink. */

import type { Scale } from "./state";

export interface Limits {
  low: number;
  high: number;
  log: boolean;
}

/** Decades below the greatest share that a log scale shows. */
const DECADES = 3;

/** From the least share there is, or three decades below the greatest, to the greatest. */
export function limitsOf(scale: Scale, greatest: number, least = 0): Limits {
  if (scale === "lift") return { low: 0.25, high: Math.max(greatest, 4), log: true };
  const high = greatest > 0 ? greatest : 1;
  if (scale === "share") return { low: 0, high, log: false };
  return { low: Math.min(Math.max(least, high / 10 ** DECADES), high / 4), high, log: true };
}

/** Where a value lies between the limits, 0 to 1; NaN stays NaN. */
export function place(value: number, { low, high, log }: Limits): number {
  if (Number.isNaN(value)) return NaN;
  const t = log
    ? Math.log(Math.max(value, low) / low) / Math.log(high / low)
    : (value - low) / (high - low || 1);
  return Math.min(Math.max(t, 0), 1);
}

export function greatest(values: ArrayLike<number>): number {
  let most = -Infinity;
  for (let at = 0; at < values.length; at++) if (values[at] > most) most = values[at];
  return most === -Infinity ? 0 : most;
}

/** The least number above zero. */
export function least(values: ArrayLike<number>): number {
  let found = Infinity;
  for (let at = 0; at < values.length; at++) if (values[at] > 0 && values[at] < found) found = values[at];
  return found === Infinity ? 0 : found;
}

/** The value farthest from zero, for a scale whose middle is no difference. */
export function farthest(values: ArrayLike<number>): number {
  let most = 0;
  for (let at = 0; at < values.length; at++) if (Math.abs(values[at]) > most) most = Math.abs(values[at]);
  return most;
}

/**
 * Pixels of a table of values. Where several cells share a pixel the one farthest from zero is
 * shown: a sink one column wide is never lost between pixels. `absent` is the colour of NaN.
 */
export function raster(
  values: ArrayLike<number>,
  [rows, cols]: [number, number],
  [width, height]: [number, number],
  limits: Limits,
  words: Uint32Array,
  absent: number,
): Uint32Array<ArrayBuffer> {
  const found = new Uint32Array(width * height);
  const line = new Float32Array(width);
  const colour = new Uint32Array(width);
  let drawn = [-1, -1];
  for (let y = 0; y < height; y++) {
    const first = Math.floor((y * rows) / height);
    const last = Math.max(first + 1, Math.ceil(((y + 1) * rows) / height - 1e-9));
    const to = rows > height ? Math.min(last, rows) : first + 1;
    if (drawn[0] !== first || drawn[1] !== to) {
      line.fill(NaN);
      for (let row = first; row < to; row++) pooled(values, row * cols, cols, line);
      for (let x = 0; x < width; x++) {
        const t = place(line[x], limits);
        colour[x] = Number.isNaN(t) ? absent : words[Math.round(t * 255)];
      }
      drawn = [first, to];
    }
    found.set(colour, y * width);
  }
  return found;
}

function pooled(values: ArrayLike<number>, from: number, cols: number, line: Float32Array): void {
  const width = line.length;
  if (cols <= width) {
    for (let x = 0; x < width; x++) farther(line, x, values[from + Math.floor((x * cols) / width)]);
    return;
  }
  for (let col = 0; col < cols; col++) {
    const x = Math.floor((col * width) / cols);
    farther(line, x, values[from + col]);
  }
}

function farther(line: Float32Array, x: number, value: number): void {
  if (Number.isNaN(line[x]) || Math.abs(value) > Math.abs(line[x])) line[x] = value;
}

/** A number as a person reads it: three digits that matter, no exponent where there need be none. */
export function said(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e6) return String(Number(value.toPrecision(digits)));
  return value.toExponential(digits - 1);
}

export function percent(value: number): string {
  return Number.isNaN(value) ? "–" : `${said(100 * value)} %`;
}

/** Quartiles of the numbers that are there. */
export function quartiles(values: number[]): [number, number, number] {
  const held = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  const at = (q: number) => {
    if (!held.length) return NaN;
    const spot = q * (held.length - 1);
    const low = Math.floor(spot);
    return held[low] + (held[Math.min(low + 1, held.length - 1)] - held[low]) * (spot - low);
  };
  return [at(0.25), at(0.5), at(0.75)];
}

/** Ticks at round whole numbers, at most `most`. */
export function ticks(count: number, most: number): number[] {
  const rough = Math.max(1, (count - 1) / Math.max(most, 1));
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? 10 * power);
  const found = [];
  for (let at = 0; at < count; at += every) found.push(at);
  return found;
}
