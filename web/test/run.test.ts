import { expect, test } from "vitest";
import { RunData } from "../src/lib/run.svelte";
import type { Header } from "../src/lib/schema";
import type { Source } from "../src/lib/source";

const HEADER = { layers: [0, 1, 2], null_of: [0, 0, 0], measures: [], flow: false, group: 0, steps: 1 } as unknown as Header;
const LAYER = { codes: new Uint8Array(1), sink_step: new Int32Array(0) };

test("a part that cannot be read is told where it is missing, and asked for once", async () => {
  let count = 0;
  const packet = async (_: number, key: string) => {
    if (key === "frames") return { meta: {}, shapes: {}, arrays: {} };
    count++;
    throw new RangeError("cut short");
  };
  const run = await RunData.open({ packet } as unknown as Source, 0, HEADER, 1);
  run.wantTile(1, null, 0);
  await run.load(1);
  expect(run.missing.get("layer-1")).toBe("what the page was given of it cannot be read: RangeError: cut short");
  expect(count).toBe(4); // three layers, and what they are held against
});

/** A source that answers only when it is told to. */
function waiting() {
  const asked: string[] = [];
  const answers = new Map<string, () => void>();
  const source = {
    packet(_: number, key: string) {
      asked.push(key);
      return new Promise((done) => answers.set(key, () => done({ meta: {}, shapes: {}, arrays: LAYER })));
    },
  };
  const answer = async (key: string) => {
    answers.get(key)!();
    await new Promise((done) => setTimeout(done));
  };
  return { source: source as unknown as Source, asked, answer };
}

test("the first layer is asked for with the frames, once, and others wait for it", async () => {
  const { source, asked, answer } = waiting();
  const opening = RunData.open(source, 0, HEADER, 1);
  expect(asked).toEqual(["frames", "layer-1"]);
  await answer("frames");
  const run = await opening;
  void run.load(1);
  run.wantTile(1, null, 0);
  await new Promise((done) => setTimeout(done));
  expect(asked).toEqual(["frames", "layer-1"]);
  await answer("layer-1");
  expect(run.layers.has(1)).toBe(true);
  expect(asked).toEqual(["frames", "layer-1", "null-0-0"]);
});

test("a layer that the run does not have is not asked for", async () => {
  const { source, asked, answer } = waiting();
  const opening = RunData.open(source, 0, HEADER, 7);
  await answer("frames");
  (await opening).wantTile(7, null, 0);
  expect(asked).toEqual(["frames"]);
});

test("a step whose top key is another than before says which was left", async () => {
  const header = { ...HEADER, steps: 5, model: { heads: 2 } } as unknown as Header;
  const layer = {
    ...LAYER,
    top_share: new Float32Array(5),
    head_top_share: new Float32Array(10),
    top_key: Int32Array.of(17, 17, 18, -1, 18),
    head_top_key: Int32Array.of(17, 3, 17, 4, 18, 4, -1, -1, 18, 4),
  };
  const packet = async () => ({ meta: {}, shapes: {}, arrays: layer });
  const run = await RunData.open({ packet } as unknown as Source, 0, header, 1);
  await run.wantLayer(1);
  const left = (head: number | null) => [0, 1, 2, 3, 4].map((step) => run.left(1, head, step));
  expect(left(null)).toEqual([-1, -1, 17, -1, -1]);
  expect(left(1)).toEqual([-1, 3, -1, -1, -1]);
  expect(run.left(0, null, 2)).toBe(-1); // not read yet
});
