import { expect, test } from "vitest";
import { identity } from "../src/lib/run.svelte";
import { beside, besides, columns, inWords, type Spelled } from "../src/lib/align";

const even = (steps: number) => ({
  steps,
  progress: Array.from({ length: steps + 1 }, (_, at) => at / steps),
});

test("by share decided, twice the steps are twice as far", () => {
  for (let step = 0; step < 8; step++) expect(beside(even(8), even(16), step, "decided")).toBe(2 * step);
});

test("of equally near steps the first is taken", () => {
  const late = { steps: 4, progress: [0, 0, 0, 0.5, 1] };
  expect(beside(even(4), late, 0, "decided")).toBe(0);
  expect(beside(late, even(4), 2, "decided")).toBe(0);
});

test("by step the shorter run stays at its end", () => {
  expect([0, 3, 9].map((step) => beside(even(10), even(4), step, "step"))).toEqual([0, 3, 3]);
});

test("by share of steps first meets first and last meets last", () => {
  expect([0, 9].map((step) => beside(even(10), even(4), step, "steps"))).toEqual([0, 3]);
  expect(beside(even(1), even(4), 0, "steps")).toBe(0);
});

test("a run beside itself is at the same step, however aligned", () => {
  for (const align of ["decided", "step", "steps"] as const)
    for (let step = 0; step < 12; step++) expect(beside(even(12), even(12), step, align)).toBe(step);
});

test("the alignment is said in words", () => {
  expect(inWords("decided", even(8), even(16), 4, 8)).toBe(
    "aligned by the share of tokens decided: step 4 of A (50 % decided) is beside step 8 of B (50 % decided)",
  );
  expect(inWords("step", even(8), even(16), 7, 12)).toBe(
    "step 7 of A (88 % decided) is beside step 12 of B (75 % decided), which was chosen; other steps are aligned by step",
  );
});

const run = (given: string[], answer: string[]): Spelled => ({
  texts: [...given, ...answer],
  answer: answer.map((_, at) => given.length + at),
});

test("an added sink token is a column of its own, and nothing else moves", () => {
  const found = columns(run(["a", "b", "c"], ["x", "y"]), run(["<sink>", "a", "b", "c"], ["z", "w"]));
  expect(found.a).toEqual([-1, 0, 1, 2, 3, 4]);
  expect(found.b).toEqual([0, 1, 2, 3, 4, 5]);
  expect(found.says).toContain("0 only in A, 1 only in B");
});

test("answers are matched by place, whatever they say", () => {
  const found = columns(run(["a"], ["x", "y", "z"]), run(["a"], ["q", "r"]));
  expect(found.a).toEqual([0, 1, 2, 3]);
  expect(found.b).toEqual([0, 1, 2, -1]);
});

test("other prompts are matched where they say the same, in order", () => {
  const found = columns(run(["the", "old", "anchor", "holds"], ["x"]), run(["the", "anchor", "slowly", "holds"], ["x"]));
  const pairs = found.a.map((i, at) => [i, found.b[at]]).filter(([i, j]) => i >= 0 && j >= 0);
  expect(pairs).toEqual([
    [0, 0],
    [2, 1],
    [3, 3],
    [4, 4],
  ]);
  expect([...found.a].filter((i) => i >= 0)).toEqual([0, 1, 2, 3, 4]);
  expect([...found.b].filter((j) => j >= 0)).toEqual([0, 1, 2, 3, 4]);
});

test("a given token never meets an answer of the same text", () => {
  const found = columns(run(["a"], []), run([], ["a"]));
  expect(found.both).toBe(0);
});

test("tokens of one look are not the same token where the page knows better", () => {
  const token = { id: 5, text: "a␀" };
  expect(identity(token, false)).toBe(identity({ id: 9, text: "a␀" }, false)); // another tokenizer
  expect(identity(token, true)).not.toBe(identity({ id: 9, text: "a␀" }, true));
  const clipped = { ...token, length: 200, digest: "a1" };
  expect(identity(token, false)).not.toBe(identity(clipped, false));
  expect(identity(clipped, false)).not.toBe(identity({ ...clipped, digest: "b2" }, false));
  expect(identity(clipped, false)).toBe(identity({ ...clipped, id: 9 }, false));
});

/** The slow twin: the longest common subsequence by trying everything. */
function longest(a: string[], b: string[]): number {
  if (!a.length || !b.length) return 0;
  if (a[0] === b[0]) return 1 + longest(a.slice(1), b.slice(1));
  return Math.max(longest(a.slice(1), b), longest(a, b.slice(1)));
}

test("as many tokens are matched as can be", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (let trial = 0; trial < 60; trial++) {
    const word = () => Array.from({ length: Math.floor(random() * 8) }, () => "abc"[Math.floor(random() * 3)]);
    const [a, b] = [word(), word()];
    const found = columns(run(a, []), run(b, []));
    expect(found.both).toBe(longest(a, b));
    found.a.forEach((i, at) => {
      if (i >= 0 && found.b[at] >= 0) expect(a[i]).toBe(b[found.b[at]]);
    });
  }
});

const net = (layers: number, more: { heads?: number; source?: string; groups?: string[]; held?: number[] } = {}) => ({
  layers: more.held ?? Array.from({ length: layers }, (_, at) => at),
  groups: more.groups ?? ["all", "masked"],
  model: { source: more.source ?? "a", layers, heads: more.heads ?? 8 },
});
const at = (layer: number, head: number | null = null, group = 0) => ({ layer, head, group });

test("runs of one shape have nothing more to say", () => {
  expect(besides(net(12), net(12), at(5, 3, 1), at(5, 3, 1))).toEqual([]);
});

test("layers of unequal depth are matched in words", () => {
  expect(besides(net(12), net(24), at(5), at(10))).toEqual([
    "layer 5 of A is beside layer 10 of B: A has 12 layers and B 24, matched by depth, first to first and last to last",
  ]);
});

test("a layer that a page does not hold is said", () => {
  const [said] = besides(net(32), net(32, { held: [0, 16, 31] }), at(14), at(16));
  expect(said).toBe("layer 14 of A is beside layer 16 of B, the nearest that is at hand");
});

test("heads and query groups that B lacks are said", () => {
  expect(besides(net(4), net(4, { heads: 2 }), at(0, 3), at(0, null))).toEqual([
    "B has no head 3: the mean of its 2 is shown",
  ]);
  expect(besides(net(4), net(4, { source: "b" }), at(0, 3), at(0, 3))).toEqual(["head 3 of both, by number only"]);
  expect(besides(net(4), net(4, { groups: ["all"] }), at(0, null, 1), at(0, null, 0))).toEqual([
    "B was not measured for masked queries: all are shown",
  ]);
});
