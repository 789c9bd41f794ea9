import { expect, test } from "vitest";
import { css, DIFFERENCE, ink, MAGNITUDE, mix, words } from "../src/lib/colour";
import { numbers, shares, unpack } from "../src/lib/packet";
import { limitsOf, place, quartiles, raster, said, ticks } from "../src/lib/values";
import { label, shown, veiled } from "../src/lib/text";

function packed(head: object, raw: Uint8Array): ArrayBuffer {
  let text = JSON.stringify(head);
  while ((text.length + 4) % 8) text += " ";
  const found = new Uint8Array(4 + text.length + raw.length);
  new DataView(found.buffer).setUint32(0, text.length, true);
  found.set(new TextEncoder().encode(text), 4);
  found.set(raw, 4 + text.length);
  return found.buffer;
}

test("a packet is its arrays", () => {
  const raw = new Uint8Array(24);
  new Float32Array(raw.buffer, 0, 2).set([0.5, NaN]);
  new Int32Array(raw.buffer, 8, 2).set([-1, 7]);
  raw.set([1, 0, 255], 16);
  const head = {
    meta: { most: 0.5 },
    arrays: {
      f: { dtype: "f4", shape: [2], at: 0 },
      i: { dtype: "i4", shape: [1, 2], at: 8 },
      u: { dtype: "u1", shape: [3], at: 16 },
    },
  };
  const { arrays, meta, shapes } = unpack(packed(head, raw));
  expect([...arrays.f]).toEqual([0.5, NaN]);
  expect([...arrays.i]).toEqual([-1, 7]);
  expect([...arrays.u]).toEqual([1, 0, 255]);
  expect(meta.most).toBe(0.5);
  expect(shapes.i).toEqual([1, 2]);
});

test("codes: 0 is absent, 1 is nothing, 255 the greatest", () => {
  const table = shares(0.5);
  expect(table[0]).toBeNaN();
  expect(table[1]).toBe(0);
  expect(table[255]).toBe(0.5);
  expect([...numbers(new Uint8Array([0, 1, 255]), -2, 3)]).toEqual([NaN, -2, 3]);
});

test("colours run from end to end and words are their bytes", () => {
  expect(mix("magnitude", 0)).toEqual([0, 34, 78]);
  expect(mix("magnitude", 1)).toEqual([254, 232, 56]);
  const [r, g, b] = mix("difference", 0.5);
  expect(Math.min(r, g, b)).toBeGreaterThan(240);
  expect([...new Uint8Array(words("magnitude").buffer, 0, 4)]).toEqual([0, 34, 78, 255]);
  expect(MAGNITUDE.length).toBe(DIFFERENCE.length);
  expect(css([1, 2, 3])).toBe("rgb(1 2 3)");
});

test("ink reads on every colour", () => {
  const light = (c: number[]) => {
    const [r, g, b] = c.map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (let at = 0; at <= 255; at++) {
    const colour = mix("magnitude", at / 255);
    const [one, other] = [light(colour), ink(colour) === "#000" ? 0 : 1];
    expect((Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)).toBeGreaterThan(4.5);
  }
});

test("a sink one column wide is never lost between pixels", () => {
  const cols = 1024;
  for (const at of [0, 1, 511, 517, 1023]) {
    const values = new Float32Array(cols).fill(0.001);
    values[at] = 0.5;
    const found = raster(values, [1, cols], [300, 2], limitsOf("share", 0.5), words("magnitude"), 0);
    const bright = words("magnitude")[255];
    expect(found.filter((word) => word === bright)).toHaveLength(2);
    expect(found.indexOf(bright)).toBe(Math.floor((at * 300) / cols));
  }
});

test("more rows than pixels keep the greatest too", () => {
  const values = new Float32Array(200).fill(0);
  values[131] = 1;
  const found = raster(values, [200, 1], [1, 50], limitsOf("share", 1), words("magnitude"), 0);
  expect(found[Math.floor(131 / 4)]).toBe(words("magnitude")[255]);
});

test("a large cell is one colour and absent has its own", () => {
  const found = raster([0, NaN, 1, 0.5], [2, 2], [4, 4], limitsOf("share", 1), words("magnitude"), 77);
  expect([...found.slice(2, 4)]).toEqual([77, 77]);
  expect(found[0]).toBe(words("magnitude")[0]);
  expect(found[8]).toBe(words("magnitude")[255]);
});

test("scales: linear from nothing, log from the least there is, lift about one", () => {
  expect(place(0.25, limitsOf("share", 0.5))).toBe(0.5);
  const log = limitsOf("log", 0.1, 0.001);
  expect(log.low).toBe(0.001);
  expect(place(0.01, log)).toBeCloseTo(0.5);
  expect(place(0, log)).toBe(0);
  expect(limitsOf("log", 0.1, 1e-9).low).toBeCloseTo(0.0001);
  expect(limitsOf("lift", 2)).toEqual({ low: 0.25, high: 4, log: true });
  expect(place(NaN, log)).toBeNaN();
});

test("numbers are said plainly", () => {
  expect([0, 0.1234567, 12.345, 1234567, 0.00001234, NaN, null].map((n) => said(n))).toEqual([
    "0",
    "0.123",
    "12.3",
    "1.23e+6",
    "1.23e-5",
    "–",
    "–",
  ]);
});

test("quartiles leave out what is absent", () => {
  expect(quartiles([3, NaN, 1, 2, 5, 4])).toEqual([2, 3, 4]);
  expect(quartiles([NaN])).toEqual([NaN, NaN, NaN]);
});

test("ticks are round and few", () => {
  expect(ticks(24, 6)).toEqual([0, 5, 10, 15, 20]);
  expect(ticks(1, 5)).toEqual([0]);
  for (const count of [3, 17, 128, 1024, 4096])
    expect(ticks(count, 8).length).toBeLessThanOrEqual(9);
});

test("tokens in labels and in the text", () => {
  const token = (text: string, more = {}) => ({ id: 1, text, ...more });
  expect(label(token(" anchor"))).toBe("␣anchor");
  expect(label(token("a⏎\nb"))).toBe("a⏎b");
  expect(label(token(""))).toBe("(empty)");
  expect(label(token("", { bytes: "e4" }))).toBe("‹e4›");
  expect([...label(token("𝔸".repeat(50)), 8)]).toHaveLength(8);
  expect(label(undefined)).toBe("");
  expect(shown(token("x", { length: 1000000 }))).toContain("1,000,000 characters");
});

test("a masked token is as wide as what will stand there", () => {
  expect(veiled({ id: 1, text: " Lena⏎\n" })).toBe(" ░░░░░\n");
  expect(veiled(undefined)).toBe("░");
});
