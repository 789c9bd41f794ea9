import { expect, test } from "vitest";
import { between, spoken } from "../src/lib/difference";
import { bounds, shares, widest } from "../src/lib/packet";
import type { RunData } from "../src/lib/run.svelte";

const MOST = 0.4;
const place = { step: 0, layer: 0, head: null, token: null, query: null, group: 0 };

/** One step of a run whose tile has these codes; `row` has exact shares. */
function made(codes: number[], { row, width = 1, sink }: { row?: number[]; width?: number; sink?: [number, number] } = {}) {
  const positions = codes.length * width;
  return {
    header: { positions, width, bins: codes.length, part: 64 },
    row: () => row && { shares: new Float32Array(row), null: new Float32Array(row.length).fill(0.125) },
    part: () => undefined,
    tile: () => ({
      codes: new Uint8Array(codes),
      most: MOST,
      sinks: {
        first: new Int32Array([0, sink ? 1 : 0]),
        key: new Int32Array(sink ? [sink[0]] : []),
        share: new Float32Array(sink ? [sink[1]] : []),
        leftOut: 0,
      },
    }),
    even: () => ({ value: 0.125, low: 0.12, high: 0.13 }),
  } as unknown as RunData;
}

const spot = (run: RunData, position = 0) => ({ run, place, step: 0, position });

test("a code lies within its bounds, and bounds of neighbours meet", () => {
  const table = shares(MOST);
  for (let code = 1; code < 256; code++) {
    const [low, high] = bounds(MOST, code);
    expect(low).toBeLessThanOrEqual(table[code] + 1e-7);
    expect(high).toBeGreaterThanOrEqual(table[code] - 1e-7);
    if (code < 255) expect(bounds(MOST, code + 1)[0]).toBe(high);
    if (code > 1) expect(table[code] - table[code - 1]).toBeLessThanOrEqual(widest(MOST) + 1e-7);
  }
  expect(bounds(MOST, 0)).toEqual([NaN, NaN]);
});

test("stored numbers are taken before colours", () => {
  const [a, b] = [made([100], { row: [0.0625] }), made([200], { row: [0.3125] })];
  const found = between(spot(a), spot(b), "share");
  expect(found).toEqual({ value: 0.25, low: 0.25, high: 0.25, exact: true, binned: false });
  expect(spoken(found)).toBe("+0.25");
  expect(between(spot(a), spot(b), "lift").value).toBeCloseTo(Math.log2(5), 6);
});

test("the difference of colours says how far it may be off", () => {
  const found = between(spot(made([100])), spot(made([200])), "share");
  expect(found.exact).toBe(false);
  expect(found.low).toBe(bounds(MOST, 200)[0] - bounds(MOST, 100)[1]);
  expect(found.high).toBe(bounds(MOST, 200)[1] - bounds(MOST, 100)[0]);
  expect(spoken(found)).toMatch(/^≈ \+0\.\d+, from \+0\.\d+ to \+0\.\d+$/);
  const lift = between(spot(made([100])), spot(made([200])), "lift");
  expect(lift.low).toBeLessThan(lift.value);
  expect(lift.high).toBeGreaterThan(lift.value);
});

test("of sinks the page has the exact share", () => {
  const [a, b] = [made([100], { sink: [0, 0.25] }), made([200], { sink: [0, 0.375] })];
  expect(between(spot(a), spot(b), "share")).toMatchObject({ value: 0.125, exact: true });
  expect(between(spot(a), spot(b), "lift").exact).toBe(false); // its null is rounded
});

test("a position of a bin may have anything up to the greatest", () => {
  const found = between(spot(made([100])), spot(made([200], { width: 4 }), 3), "share");
  expect(found.low).toBe(0 - bounds(MOST, 100)[1]);
  expect(found.value).toBeNaN();
  expect(spoken(found)).toMatch(/^from -0\.\d+ to \+0\.\d+: of a bin only the greatest is known$/);
});

test("what is absent in one is not in both", () => {
  expect(spoken(between(spot(made([0])), spot(made([200])), "share"))).toBe("not in both");
});
