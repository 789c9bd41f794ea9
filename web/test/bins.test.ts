import { expect, test } from "vitest";
import { column, greatestIn } from "../src/lib/bins";
import { RunData } from "../src/lib/run.svelte";
import type { Header } from "../src/lib/schema";
import type { Source } from "../src/lib/source";
import { cell, readAs, reading } from "../src/lib/words";

const WIDTH = 4;
const POSITIONS = 10;
const BINS = 3;
const place = { step: 0, layer: 0, head: null, token: null, query: null, group: 0 };
const HEADER = {
  frames: 2,
  steps: 1,
  positions: POSITIONS,
  width: WIDTH,
  bins: BINS,
  part: 64,
  groups: ["all"],
  group: 0,
  layers: [0],
  null_of: [0],
  measures: [],
  flow: false,
  regions: [],
  roles: ["prompt", "special", "masked", "fresh", "written", "absent"],
  tokens: [{ id: 7, text: "a" }],
  model: { layers: 1, heads: 1 },
  on_demand: { heads: true, rows: true, maps: false, live: false },
} as unknown as Header;

/** A run of one step and three bins: a sink at 5, and exact numbers where they can be asked for. */
async function made(row: number[] | null): Promise<RunData> {
  const empty = new Int32Array(0);
  const packets: Record<string, { arrays: Record<string, unknown>; meta?: object }> = {
    frames: {
      arrays: {
        canvas: new Int32Array(2 * POSITIONS),
        role: new Uint8Array(2 * POSITIONS),
        region: new Int32Array(POSITIONS).fill(-1),
        committed_at: new Int32Array(POSITIONS).fill(-1),
      },
    },
    "layer-0": {
      arrays: {
        codes: new Uint8Array([128, 255, 0]),
        sink_step: new Int32Array([0]),
        sink_key: new Int32Array([5]),
        sink_share: new Float32Array([0.5]),
        flow: empty,
      },
      meta: { most: 0.5, sinks_left_out: 0 },
    },
    "null-0-0": { arrays: { codes: new Uint8Array([255, 200, 100]) }, meta: { most: 0.125 } },
    "row-0-0-mean": { arrays: { shares: new Float32Array(row ?? []), null: new Float32Array(POSITIONS).fill(0.125) } },
  };
  const source = { packet: async (_: number, key: string) => ({ meta: {}, shapes: {}, ...packets[key] }) };
  const run = await RunData.open(source as unknown as Source, 0, HEADER, 0);
  await run.load(0);
  if (row) run.wantRow(0, 0, null);
  await new Promise((done) => setTimeout(done));
  return run;
}

const ROW = [0, 0, 0.0625, 0, 0.03125, 0.5, 0, 0, NaN, NaN];

test("of a bin the position that receives most is named where it is known", async () => {
  const [sent, asked] = [await made(null), await made(ROW)];
  expect(greatestIn(asked, place, 0, 0)).toEqual({ position: 2, share: 0.0625, exact: true });
  expect(greatestIn(sent, place, 0, 0)).toMatchObject({ position: -1, exact: false });
  expect(greatestIn(sent, place, 0, 1)).toEqual({ position: 5, share: 0.5, exact: true }); // a sink
  expect(greatestIn(asked, place, 0, 2)).toMatchObject({ position: -1, share: NaN });
});

test("a column of several positions says its range, and never takes its first position for the greatest", async () => {
  const [sent, asked] = [await made(null), await made(ROW)];
  expect(column(asked, place, 0, 0)).toContain("position 2 · ");
  expect(column(asked, place, 0, 0)).toContain("0.0625 of attention, 0.5 × even share");
  expect(column(asked, place, 0, 0)).toContain("greatest of positions 0 to 3");
  expect(column(sent, place, 0, 0)).toMatch(/^step 0 · positions 0 to 3 · the greatest of them receives ≈ 0\.\d+ of attention$/);
  expect(column(sent, place, 0, 2)).toBe("step 0 · positions 8 to 9 · not measured");
});

test("a position of a bin has at most what the greatest has, and a table says so", async () => {
  const sent = await made(null);
  expect(cell(sent, place, 0, 1)).toMatch(/at most ≈ 0\.\d+ of attention, which the greatest of positions 0 to 3 receives/);
  expect(readAs(reading(sent, place, 0, 1))).toBe("8 bit, the greatest of its bin");
  expect(readAs(reading(sent, place, 0, 5))).toBe("exact");
});

test("the greatest of a bin over the greatest null of it is no lift", async () => {
  const run = await made(null);
  const values = run.values(run.layers.get(0)!, 0, "lift", 0);
  expect([...values]).toEqual([NaN, NaN, NaN]);
  expect(run.even(0, 0, 0, 5).value).toBeNaN();
});
