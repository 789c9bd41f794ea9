/** Packets as the Python half writes them: head length, JSON head, raw little-endian arrays. */

export type Held = Uint8Array | Int32Array | Float32Array;

export interface Packet {
  meta: Record<string, number>;
  arrays: Record<string, Held>;
  shapes: Record<string, number[]>;
}

const KINDS = { u1: Uint8Array, i4: Int32Array, f4: Float32Array } as const;

export function unpack(buffer: ArrayBuffer): Packet {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const found: Packet = { meta: head.meta, arrays: {}, shapes: {} };
  for (const [name, one] of Object.entries<{ dtype: keyof typeof KINDS; shape: number[]; at: number }>(
    head.arrays,
  )) {
    const count = one.shape.reduce((a, b) => a * b, 1);
    found.arrays[name] = new KINDS[one.dtype](buffer, 4 + length + one.at, count);
    found.shapes[name] = one.shape;
  }
  return found;
}

/** The share that each code stands for: the greatest times a cube; code 0 is absent. */
export function shares(most: number): Float32Array {
  const found = new Float32Array(256).fill(NaN);
  for (let code = 1; code < 256; code++) found[code] = most * ((code - 1) / 254) ** 3;
  return found;
}

/** The least and the greatest share that are rounded to a code. */
export function bounds(most: number, code: number): [number, number] {
  if (code === 0) return [NaN, NaN];
  const edge = (level: number) => most * (Math.min(Math.max(level, 0), 254) / 254) ** 3;
  return [edge(code - 1.5), edge(code - 0.5)];
}

/** The widest step of the codes, which is the one below the greatest share. */
export function widest(most: number): number {
  return most * (1 - (253 / 254) ** 3);
}

/** The numbers of linear codes, for measures in an exported page. */
export function numbers(codes: Uint8Array, least: number, most: number): Float32Array {
  const found = new Float32Array(codes.length);
  for (let at = 0; at < codes.length; at++)
    found[at] = codes[at] === 0 ? NaN : least + ((codes[at] - 1) / 254) * (most - least);
  return found;
}

export async function inflated(text: string): Promise<ArrayBuffer> {
  const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
