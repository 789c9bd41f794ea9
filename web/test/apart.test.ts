import { expect, test } from "vitest";
import { columns } from "../src/lib/align";
import { flowApart, headsApart, headsUnlike, partners, topsApart } from "../src/lib/apart";
import { ribbons, spaced, type Flow } from "../src/lib/flow";
import { headLimits } from "../src/lib/heads";
import type { RunData } from "../src/lib/run.svelte";

interface Made {
  layers?: number;
  heads?: number;
  /** [layer][step] greatest key and its share. */
  tops?: [number, number][][];
  /** [layer x head] by name, over all steps. */
  measures?: Record<string, number[]>;
  words?: string[];
}

function made({ layers = 1, heads = 1, tops = [], measures = {}, words }: Made): RunData {
  const steps = tops[0]?.length ?? 1;
  return {
    header: {
      steps,
      positions: 4,
      layers: Array.from({ length: layers }, (_, at) => at),
      model: { layers, heads, source: "made" },
      progress: Array.from({ length: steps + 1 }, (_, at) => at / steps),
      measures: Object.keys(measures).map((name) => ({ name, unit: "", says: "", words })),
    },
    layers: new Map(),
    measures: new Map(Object.entries(measures).map(([name, held]) => [name, new Float32Array(held)])),
    top: (layer: number, _head: number | null, step: number) => tops[layer]?.[step] ?? [-1, NaN],
  } as unknown as RunData;
}

const same = columns({ texts: ["a", "b", "c", "d"], answer: [] }, { texts: ["a", "b", "c", "d"], answer: [] });
const sunk = columns({ texts: ["a", "b", "c"], answer: [] }, { texts: ["<sink>", "a", "b", "c"], answer: [] });

test("a token has its partner by what it says, not by its place", () => {
  expect([...partners(same, 4)]).toEqual([0, 1, 2, 3]);
  expect([...partners(sunk, 3)]).toEqual([1, 2, 3]);
});

test("greatest keys: how much more, and whether it is another token", () => {
  const a = made({ tops: [[[0, 0.25], [2, 0.5]]] });
  const b = made({ tops: [[[1, 0.75], [1, 0.25]]] });
  const found = topsApart(a, b, { heads: [null, null], columns: sunk, across: [0, 1] });
  expect([...found.shares]).toEqual([0.5, -0.25]);
  expect([...found.moved]).toEqual([0, 1]); // "a" is at 1 beside a sink; "c" would be at 3
  expect([found.known, found.others]).toEqual([2, 1]);
});

test("layers of unequal depth are matched first to first and last to last", () => {
  const one = (share: number): [number, number][] => [[0, share]];
  const a = made({ layers: 2, tops: [one(0), one(0)] });
  const b = made({ layers: 3, tops: [one(0.125), one(0.25), one(0.5)] });
  const found = topsApart(a, b, { heads: [null, null], columns: same, across: [0] });
  expect([...found.shares]).toEqual([0.125, 0.5]);
});

test("what was not measured in both has no difference", () => {
  const [a, b] = [made({ tops: [[[0, 0.5]]] }), made({ tops: [[[-1, NaN]]] })];
  const found = topsApart(a, b, { heads: [null, null], columns: same, across: [0] });
  expect(found.shares[0]).toBeNaN();
  expect([found.known, found.others]).toEqual([0, 0]);
});

test("heads: B less A, cell by cell", () => {
  const a = made({ layers: 2, heads: 2, measures: { entropy: [1, 2, 3, NaN] } });
  const b = made({ layers: 2, heads: 2, measures: { entropy: [4, 2, 1, 1] } });
  const found = headsApart(a, b, "entropy", { steps: [0, 0], columns: same });
  expect([...found.values]).toEqual([3, 0, -2, NaN]);
  expect(found.named).toBe(false);
});

test("heads of a deeper network are matched by depth", () => {
  const a = made({ layers: 2, heads: 1, measures: { entropy: [0, 0] } });
  const b = made({ layers: 3, heads: 1, measures: { entropy: [1, 2, 4] } });
  expect([...headsApart(a, b, "entropy", { steps: [0, 0], columns: same }).values]).toEqual([1, 4]);
});

test("verdicts have no size: they are the same or not, by their words", () => {
  const a = made({ heads: 3, measures: { type: [0, 1, 1] }, words: ["sink", "local"] });
  const b = made({ heads: 3, measures: { type: [1, 1, 0] }, words: ["local", "sink"] });
  const found = headsApart(a, b, "type", { steps: [0, 0], columns: same });
  expect(found.named).toBe(true);
  expect([...found.values]).toEqual([0, 1, 0]);
});

test("why heads cannot be compared is said", () => {
  const a = made({ heads: 4, measures: { entropy: [0, 0, 0, 0] } });
  expect(headsUnlike(a, made({ heads: 8 }), "greatest share")).toContain("A has 4 heads in a layer and B 8");
  expect(headsUnlike(a, made({ heads: 4 }), "entropy")).toContain("B has no “entropy”");
  expect(headsUnlike(a, made({ heads: 4 }), "constructor")).toContain("A and B have no “constructor”");
  expect(headsUnlike(a, a, "entropy")).toBe("");
});

const flow = (from: string[], to: string[], table: number[][], more: Partial<Flow> = {}): Flow => ({
  from,
  to,
  table,
  measured: false,
  kind: "region",
  added: false,
  ...more,
});

test("flow is compared between parts of the same name", () => {
  const a = flow(["all", "masked"], ["passage", "rest"], [[0.5, 0.5], [0.25, 0.75]]);
  const b = flow(["all"], ["rest", "passage", "added keys"], [[0.25, 0.5, 0.25]]);
  const found = flowApart(a, b);
  expect([found.from, found.to]).toEqual([["all"], ["passage", "rest"]]);
  expect(found.table).toEqual([[0, -0.25]]);
  expect(found.says).toEqual(["only A has queries that are masked", "only B has keys that are added keys"]);
});

test("a region and a role of one name are not the same part", () => {
  const a = flow(["all"], ["prompt", "added keys"], [[0.5, 0.5]], { added: true });
  const b = flow(["all"], ["prompt", "masked", "added keys"], [[0.25, 0.5, 0.25]], { kind: "role", added: true });
  const found = flowApart(a, b);
  expect(found.to).toEqual(["added keys"]);
  expect(found.table).toEqual([[-0.25]]);
  expect(found.says).toEqual(["keys are told apart by region in A and by role in B"]);
  expect(flowApart(a, { ...b, added: false }).to).toEqual([]);
});

test("ribbons are as thick as shares, and bars hold them", () => {
  const { left, right, ribbons: found } = ribbons(flow(["a", "b", "none"], ["x", "y"], [[0.5, 0.5], [0.25, 0.75], [0, 0]]), 100);
  expect(left.map((bar) => bar.name)).toEqual(["a", "b"]);
  const unit = (100 - 10) / 2;
  expect(left.map((bar) => bar.h)).toEqual([unit, unit]);
  expect(right.map((bar) => bar.h)).toEqual([0.75 * unit, 1.25 * unit]);
  expect(found).toHaveLength(4);
  expect(found[3]).toMatchObject({ from: left[1].y + 0.25 * unit, to: right[1].y + 0.5 * unit, h: 0.75 * unit });
});

test("names stand apart and inside", () => {
  expect(spaced([10, 50], 15, 7, 93)).toEqual([10, 50]);
  expect(spaced([80, 84, 90], 15, 7, 93)).toEqual([63, 78, 93]);
  expect(spaced([0, 1], 15, 7, 93)).toEqual([7, 22]);
});

test("limits hold for both tables", () => {
  const table = (...held: number[]) => new Float32Array(held);
  expect(headLimits([table(1, 2), table(NaN, 5)])).toEqual({ low: 0, high: 5, log: false });
  expect(headLimits([table(-1, -2)])).toEqual({ low: -2, high: -1, log: false });
  expect(headLimits([table(NaN)])).toEqual({ low: 0, high: 1, log: false });
});
