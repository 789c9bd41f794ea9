import { expect, test } from "vitest";
import { canShow, Missing, opened } from "../src/lib/source";

function packet(): Uint8Array<ArrayBuffer> {
  let head = JSON.stringify({ meta: {}, arrays: { a: { dtype: "u1", shape: [2], at: 0 } } });
  while ((head.length + 4) % 8) head += " ";
  const found = new Uint8Array(4 + head.length + 8);
  new DataView(found.buffer).setUint32(0, head.length, true);
  found.set(new TextEncoder().encode(head), 4);
  found.set([7, 9], 4 + head.length);
  return found;
}

async function squeezed(): Promise<string> {
  const stream = new Blob([packet()]).stream().pipeThrough(new CompressionStream("gzip"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(String.fromCharCode(...raw));
}

test("runs inside the page", async () => {
  const text = JSON.stringify({
    source: "inline",
    runs: [{ id: 0, name: "a", header: { name: "a", frames: 3 }, packets: { frames: await squeezed() } }],
  });
  const source = opened(text);
  expect(source.runs).toEqual([{ id: 0, name: "a" }]);
  expect(canShow(await source.header(0))).toBe(true);
  expect([...(await source.packet(0, "frames")).arrays.a]).toEqual([7, 9]);
  await expect(source.packet(0, "layer-0")).rejects.toThrow(Missing);
  await expect(source.header(4)).rejects.toThrow(Missing);
});

test("runs beside the page, or on a server, are asked for by number and key", async () => {
  const asked: string[] = [];
  const fetcher = (async (path: string) => {
    asked.push(path);
    return path.endsWith("json") ? Response.json({ name: "b", damage: ["x"] }) : new Response(packet());
  }) as unknown as typeof fetch;
  const source = opened('{"source":"api","runs":[{"id":0,"name":"b"}]}', fetcher);
  expect(canShow(await source.header(0))).toBe(false);
  expect([...(await source.packet(0, "row-1-2-mean")).arrays.a]).toEqual([7, 9]);
  expect(asked).toEqual(["data/0/header.json", "data/0/row-1-2-mean.bin"]);
});

test("what the server says is what is said", async () => {
  const refuses = (async () => Response.json({ error: "measure it" }, { status: 404 })) as typeof fetch;
  const gone = (async () => {
    throw new TypeError("no network");
  }) as unknown as typeof fetch;
  const text = '{"source":"static","runs":[]}';
  await expect(opened(text, refuses).packet(0, "map-0-0-0")).rejects.toThrow("measure it");
  await expect(opened(text, gone).header(0)).rejects.toThrow("nobody answers");
});

test("a server's numbers are not the places of a list: some runs of a folder, and forks", async () => {
  const asked: [string, string | undefined][] = [];
  const fetcher = (async (path: string, sent?: RequestInit) => {
    asked.push([path, sent?.method]);
    return new Response("{}");
  }) as typeof fetch;
  const source = opened('{"source":"api","runs":[{"id":5,"name":"a"},{"id":9,"name":"b"}]}', fetcher);
  expect(source.runs.map(({ id }) => id)).toEqual([0, 1]);
  await source.header(1);
  expect(source.place!(9)).toBe(1);
  expect(source.place!(12)).toBe(2);
  await source.change!(2, "save", {});
  await source.change!(null, "fork.json");
  expect(asked).toEqual([["data/9/header.json", undefined], ["data/12/save", "POST"], ["data/fork.json", undefined]]);
  expect(opened('{"source":"static","runs":[]}').change).toBeUndefined();
});
