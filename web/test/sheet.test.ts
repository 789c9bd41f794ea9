import { expect, test } from "vitest";
import { csv } from "../src/lib/sheet";

const line = (...cells: (string | number)[]) => csv({ head: cells.map(() => "x"), rows: [cells] }).split("\r\n")[1];

test("numbers are as they are", () => {
  expect(line(-0.5, 1e-7, 12)).toBe("-0.5,1e-7,12");
});

test.each(["=1+1", "+1", "-1+cmd|' /C calc'!A0", "-5", "@x", "\tx"])("the word %s is not run", (word) => {
  expect(line(word)).toBe(`'${word}`);
});

test("commas, quotes and line breaks stay in their cell", () => {
  expect(line("a,b", 'say "x"')).toBe('"a,b","say ""x"""');
  expect(csv({ head: ["a"], rows: [["x\r\ny"]] })).toBe('a\r\n"x\r\ny"\r\n');
  expect(csv({ head: ["a"], rows: [["\rx"]] })).toBe('a\r\n"\'\rx"\r\n');
});
