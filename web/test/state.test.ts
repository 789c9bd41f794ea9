import { expect, test } from "vitest";
import { clamped, decode, encode, FIRST, LONGEST_HASH, PANELS, type State } from "../src/lib/state";

const SOME: State = {
  ...FIRST,
  run: 1,
  beside: 0,
  step: 40,
  stepB: 12,
  layer: 31,
  head: 7,
  token: 17,
  query: 3,
  group: "masked",
  scale: "lift",
  align: "steps",
  measure: "value_norm",
  panel: "difference",
  tables: ["map", "flow-difference"],
  theme: "dark",
  speed: 16,
  find: "Oslo & the sea",
  keys: "off",
};

test("a link comes back", () => {
  expect(decode(`#${encode(SOME, 2)}`, 2)).toEqual({ state: SOME, notices: [] });
  expect(decode(`#${encode(FIRST)}`)).toEqual({ state: FIRST, notices: [] });
});

test("tables are named, and all of them are one word", () => {
  expect(encode({ ...FIRST, tables: ["map", "heads"] })).toContain("tables=map%2Cheads");
  expect(encode({ ...FIRST, tables: [...PANELS] })).toContain("tables=1");
  expect(decode("#tables=1").state.tables).toEqual(PANELS);
  expect(decode("#tables=text,chairs,text").state.tables).toEqual(["text"]);
  expect(decode("#speed=7&keys=loud").state).toEqual(FIRST);
});

test("a page of several runs shows two, unless the link says none", () => {
  expect(decode("", 2).state.beside).toBe(1);
  expect(decode("#v=1&step=4", 3).state.beside).toBe(1);
  expect(decode("#v=1&run=2", 3).state.beside).toBe(0);
  expect(decode("#v=1&with=none", 2).state.beside).toBeNull();
  expect(decode("", 1).state.beside).toBeNull();
});

test("which runs are looked at comes back, one alone and one beside itself too", () => {
  for (const run of [0, 1, 2])
    for (const beside of [null, 0, 1, 2]) {
      const state = { ...FIRST, run, beside };
      expect(decode(`#${encode(state, 3)}`, 3)).toEqual({ state, notices: [] });
    }
});

test("runs that are not there are said", () => {
  expect(decode("#run=7", 2)).toMatchObject({ state: { run: 0, beside: 1 }, notices: ["there is no run 7: showing 0"] });
  expect(decode("#with=7", 2)).toMatchObject({ state: { beside: null }, notices: ["there is no run 7 to compare with"] });
  expect(decode("#with=some", 2).notices[0]).toContain("neither a whole number nor none");
});

test("what is as at first is not in the link", () => {
  expect(encode(FIRST)).toBe("v=1&layer=0");
  expect(encode({ ...FIRST, step: 3 })).toBe("v=1&step=3&layer=0");
});

test.each(["step=-1", "step=1e309", "layer=NaN", "token=0x10", "head=1.5", "run=٣", "step=99999999"])(
  "%s is said and ignored",
  (word) => {
    const { state, notices } = decode(`#v=1&${word}`);
    expect(state).toEqual(FIRST);
    expect(notices).toHaveLength(1);
    expect(notices[0]).toContain("not a whole number");
  },
);

test("unknown words are ignored without a sound", () => {
  expect(decode("#v=1&colour=red&__proto__=1&constructor=2&scale=cubic&theme=pink")).toEqual({
    state: FIRST,
    notices: [],
  });
});

test("a link of another version says so", () => {
  expect(decode("#v=2&step=3").notices[0]).toContain("version 2");
});

test("a megabyte of link is ignored", () => {
  const { state, notices } = decode("#v=1&step=3&measure=" + "x".repeat(LONGEST_HASH));
  expect(state).toEqual(FIRST);
  expect(notices[0]).toContain("too long");
});

test("what the run does not have is clamped and said", () => {
  const limits = { steps: 8, layers: [0, 4, 8], heads: 4, positions: 14, groups: ["all", "masked"] };
  const { state, notices } = clamped({ ...FIRST, step: 99, layer: 5, head: 9, token: 14, query: 20, group: "fresh" }, limits);
  expect(state).toMatchObject({ step: 7, layer: 4, head: 3, token: 13, query: 13, group: null });
  expect(notices).toHaveLength(6);
  expect(notices).toContain("queries “fresh” are not in this run: it has all, masked");
  expect(clamped({ ...FIRST, step: 7, layer: 8 }, limits).notices).toEqual([]);
});
