/** A run in the page: its header, its frames, and the parts that arrive while it is looked at. */

import type { Spelled } from "./align";
import { bounds, numbers, shares, type Packet } from "./packet";
import type { Findings, Header, Packets, Token } from "./schema";
import { unread, type Source } from "./source";
import type { Scale } from "./state";

export interface Sinks {
  /** [step] where the sinks of a step begin; one more than there are steps. */
  first: Int32Array;
  key: Int32Array;
  share: Float32Array;
  leftOut: number;
}

export interface Tile {
  /** [step, bin] codes of shares. */
  codes: Uint8Array;
  most: number;
  sinks: Sinks;
}

export interface Layer extends Tile {
  topKey: Int32Array;
  topShare: Float32Array;
  headTopKey: Int32Array;
  headTopShare: Float32Array;
  headSinkShare: Float32Array;
  headSinks: Int32Array;
  flow: Float32Array;
}

export type Row = Packets["row"];

/** Some neighbouring positions at all steps, one column each: [step, column] exact. */
export type Part = Packets["part"] & {
  /** The position of the first column. */
  from: number;
  cols: number;
};

/** What the model would write at the masked positions of a frame: [position, rank]. */
export type Candidates = Packets["candidates"] & { ranks: number; texts: Record<string, string> };

export interface ExactMap {
  map: Float32Array;
  rows: number;
  cols: number;
  width: number;
}

/** Tiles of single heads that are kept; each is steps x bins bytes. */
const MOST_TILES = 48;
const MOST_ROWS = 400;
const MOST_PARTS = 24;

/** A number that was rounded, and the least and greatest it may have been. */
export interface Rounded {
  value: number;
  low: number;
  high: number;
}

export class RunData {
  layers = $state.raw<ReadonlyMap<number, Layer>>(new Map());
  tiles = $state.raw<ReadonlyMap<string, Tile>>(new Map());
  rows = $state.raw<ReadonlyMap<string, Row>>(new Map());
  maps = $state.raw<ReadonlyMap<string, ExactMap>>(new Map());
  measures = $state.raw<ReadonlyMap<string, Float32Array>>(new Map());
  /** What table measures have beside their values: null, lift, low, high, n. */
  besides = $state.raw<ReadonlyMap<string, Packet["arrays"]>>(new Map());
  /** How wide the steps of measures are that came in eight bits; others are exact. */
  coarse = $state.raw<ReadonlyMap<string, number>>(new Map());
  parts = $state.raw<ReadonlyMap<string, Part>>(new Map());
  nulls = $state.raw<ReadonlyMap<string, { codes: Uint8Array; most: number }>>(new Map());
  flow = $state.raw<Float32Array | null>(null);
  findings = $state.raw<Findings | null>(null);
  candidates = $state.raw<ReadonlyMap<string, Candidates>>(new Map());
  /** What could not be had, by key: shown where it is missing. */
  missing = $state.raw<ReadonlyMap<string, string>>(new Map());
  frames!: Packets["frames"];
  private asked = new Map<string, Promise<void>>();

  private constructor(
    readonly id: number,
    readonly header: Header,
    private source: Source,
  ) {}

  /** The layer that is seen first is asked for with the frames: it takes longest, and drawing would hold it back. */
  static async open(source: Source, id: number, header: Header, first: number): Promise<RunData> {
    const run = new RunData(id, header, source);
    const frames = source.packet(id, "frames");
    void run.wantLayer(first);
    run.frames = (await frames).arrays as Packets["frames"];
    return run;
  }

  /** The layer at the cursor first, then the others, one after another. */
  async load(first: number): Promise<void> {
    const { layers, null_of, measures, flow, group } = this.header;
    await this.wantLayer(first);
    if (layers.length) for (const at of new Set(null_of)) await this.wantNull(at, group);
    for (const at of layers) if (!this.layers.has(at)) await this.wantLayer(at);
    if (flow) await this.want("flow", (packet) => (this.flow = (packet.arrays as Packets["flow"]).flow));
    await Promise.all(measures.map((_, at) => this.wantMeasure(at)));
  }

  /** What stands out, in words; null where that is not known. */
  async wantFindings(): Promise<Findings | null> {
    if (!this.header.layers.length) return null;
    await this.want("findings", ({ meta }) => (this.findings = meta as unknown as Findings));
    return this.findings;
  }

  wantCandidates(step: number): Promise<void> {
    const key = `candidates-${step}`;
    return this.want(key, ({ arrays, shapes, meta }) => {
      const { texts } = meta as unknown as Pick<Candidates, "texts">;
      const found = { ...(arrays as Packets["candidates"]), ranks: shapes.token[1], texts };
      this.candidates = kept(this.candidates, key, found, MOST_PARTS);
    });
  }

  async wantLayer(at: number): Promise<void> {
    if (!this.header.layers.includes(at)) return;
    await this.want(`layer-${at}`, (packet) => {
      this.layers = new Map(this.layers).set(at, layerOf(packet, this.header.steps));
    });
  }

  /** The tile that is looked at: of the mean over heads it came with the layer. */
  tile(layer: number, head: number | null, group: number): Tile | undefined {
    if (head === null && group === this.header.group) return this.layers.get(layer);
    return this.tiles.get(`tile-${layer}-${head ?? "mean"}-${group}`);
  }

  wantTile(layer: number, head: number | null, group: number): void {
    if (head === null && group === this.header.group) return void this.wantLayer(layer);
    if (!this.header.on_demand.heads || !this.header.layers.includes(layer)) return;
    const key = `tile-${layer}-${head ?? "mean"}-${group}`;
    void this.want(key, (packet) => {
      this.tiles = kept(this.tiles, key, tileOf(packet, this.header.steps), MOST_TILES);
    });
    if (group !== this.header.group) void this.wantNull(this.header.null_of[layer], group);
  }

  row(step: number, layer: number, head: number | null): Row | undefined {
    return this.rows.get(`row-${step}-${layer}-${head ?? "mean"}`);
  }

  wantRow(step: number, layer: number, head: number | null): void {
    if (!this.header.on_demand.rows || !this.header.layers.includes(layer)) return;
    const key = `row-${step}-${layer}-${head ?? "mean"}`;
    if (this.rows.has(key)) return;
    void this.want(key, ({ arrays }) => {
      this.rows = kept(this.rows, key, arrays as Packets["row"], MOST_ROWS);
    });
  }

  part(layer: number, head: number | null, group: number, at: number): Part | undefined {
    return this.parts.get(`part-${layer}-${head ?? "mean"}-${group}-${at}`);
  }

  /** The exact range around a position, where the axis is binned. */
  wantPart(layer: number, head: number | null, group: number, at: number): void {
    if (!this.header.on_demand.rows || !this.header.layers.includes(layer)) return;
    const key = `part-${layer}-${head ?? "mean"}-${group}-${at}`;
    if (this.parts.has(key)) return;
    void this.want(key, ({ arrays, shapes }) => {
      const part = {
        from: at * this.header.part,
        cols: shapes.shares[1],
        ...(arrays as Packets["part"]),
      };
      this.parts = kept(this.parts, key, part, MOST_PARTS);
    });
  }

  hasMap(step: number, layer: number, head: number): boolean {
    return this.header.maps.some(([s, l, h]) => s === step && l === layer && h === head);
  }

  wantMap(step: number, layer: number, head: number): Promise<void> {
    const key = `map-${step}-${layer}-${head}`;
    return this.want(key, ({ arrays, shapes, meta }) => {
      const [rows, cols] = shapes.map;
      const map = { ...(arrays as Packets["map"]), rows, cols, width: meta.width };
      this.maps = kept(this.maps, key, map, 8);
    });
  }

  wantMeasure(at: number): Promise<void> {
    const { name } = this.header.measures[at];
    return this.want(`measure-${at}`, ({ arrays, meta }) => {
      const values = arrays.values
        ? (arrays.values as Float32Array)
        : numbers(arrays.codes as Uint8Array, meta.least, meta.most);
      this.measures = new Map(this.measures).set(name, values);
      if (!arrays.values) this.coarse = new Map(this.coarse).set(name, (meta.most - meta.least) / 254);
      if (arrays.null) this.besides = new Map(this.besides).set(name, arrays);
    });
  }

  private wantNull(at: number, group: number): Promise<void> {
    const key = `null-${at}-${group}`;
    return this.want(key, ({ arrays, meta }) => {
      this.nulls = new Map(this.nulls).set(key, { ...(arrays as Packets["null"]), most: meta.most });
    });
  }

  private null(layer: number, group: number) {
    return this.nulls.get(`null-${this.header.null_of[layer]}-${group}`);
  }

  /** What indifferent attention gives to a position; of a bin it is not known whose null is its greatest. */
  even(layer: number, group: number, step: number, position: number): Rounded {
    const held = this.null(layer, group);
    if (!held || this.header.width > 1) return { value: NaN, low: NaN, high: NaN };
    const code = held.codes[step * this.header.bins + position];
    const [low, high] = bounds(held.most, code);
    return { value: shares(held.most)[code], low, high };
  }

  /** [step, bin] what a tile shows on a scale: shares, or, where a column is one position, times its null. */
  values(tile: Tile, layer: number, scale: Scale, group: number): Float32Array {
    const table = shares(tile.most);
    const found = new Float32Array(tile.codes.length);
    for (let at = 0; at < found.length; at++) found[at] = table[tile.codes[at]];
    if (scale !== "lift") return found;
    const held = this.null(layer, group);
    if (!held || this.header.width > 1) return found.fill(NaN);
    const even = shares(held.most);
    for (let at = 0; at < found.length; at++) found[at] /= even[held.codes[at]];
    return found;
  }

  token(frame: number, position: number) {
    const at = this.frames.canvas[frame * this.header.positions + position];
    return at < 0 ? undefined : this.header.tokens[at];
  }

  /** The key that receives most of a head, or of the mean of heads; -1 and NaN where none is known. */
  top(layer: number, head: number | null, step: number): [key: number, share: number] {
    const held = this.layers.get(layer);
    if (!held) return [-1, NaN];
    if (head === null) return [held.topKey[step], held.topShare[step]];
    const at = step * this.header.model.heads + head;
    return [held.headTopKey[at], held.headTopShare[at]];
  }

  /** The top key of the step before, where this step has another; -1 where it has the same, or one is not known. */
  left(layer: number, head: number | null, step: number): number {
    if (step < 1) return -1;
    const [before, now] = [this.top(layer, head, step - 1)[0], this.top(layer, head, step)[0]];
    return now < 0 || before === now ? -1 : before;
  }

  /** What keys receive that parts added, such as a sink token; NaN where that is not known. */
  added(layer: number, head: number | null, group: number, step: number): number {
    const { header } = this;
    if (!header.added) return NaN;
    const { layers, heads } = header.model;
    if (head === null) {
      const [groups, classes] = [header.groups.length, header.classes.length];
      return this.layers.get(layer)?.flow[(step * groups + group + 1) * classes - 1] ?? NaN;
    }
    const field = group === header.group ? this.measures.get("sink_received") : undefined;
    return field?.[(step * layers + layer) * heads + head] ?? NaN;
  }

  /** The greatest share that any key receives in any layer, of a head or of the mean. */
  strongest(head: number | null): number {
    let most = 0;
    for (const layer of this.layers.keys())
      for (let step = 0; step < this.header.steps; step++) most = Math.max(most, this.top(layer, head, step)[1] || 0);
    return most;
  }

  /** What stands at a position in the end. */
  last(position: number) {
    return this.token(this.header.frames - 1, position);
  }

  /** Ask for a part once; who asks again waits for the same answer. */
  private want(key: string, put: (packet: Packet) => void): Promise<void> {
    let coming = this.asked.get(key);
    if (!coming) this.asked.set(key, (coming = this.ask(key, put)));
    return coming;
  }

  private async ask(key: string, put: (packet: Packet) => void): Promise<void> {
    try {
      put(await this.source.packet(this.id, key));
    } catch (error) {
      this.missing = new Map(this.missing).set(key, unread(error));
    }
    if (/^(tile|row|map|part|candidates)/.test(key)) this.asked.delete(key);
  }
}

function kept<T>(held: ReadonlyMap<string, T>, key: string, value: T, most: number): Map<string, T> {
  const found = new Map(held).set(key, value);
  for (const old of found.keys()) {
    if (found.size <= most) break;
    found.delete(old);
  }
  return found;
}

function tileOf({ arrays, meta }: Packet, steps: number): Tile {
  const tile = arrays as Packets["tile"];
  const first = new Int32Array(steps + 1);
  for (const step of tile.sink_step) first[step + 1]++;
  for (let step = 0; step < steps; step++) first[step + 1] += first[step];
  return {
    codes: tile.codes,
    most: meta.most,
    sinks: {
      first,
      key: tile.sink_key,
      share: tile.sink_share,
      leftOut: meta.sinks_left_out,
    },
  };
}

function layerOf(packet: Packet, steps: number): Layer {
  const layer = packet.arrays as Packets["layer"];
  return {
    ...tileOf(packet, steps),
    topKey: layer.top_key,
    topShare: layer.top_share,
    headTopKey: layer.head_top_key,
    headTopShare: layer.head_top_share,
    headSinkShare: layer.head_sink_share,
    headSinks: layer.head_sinks,
    flow: layer.flow,
  };
}

/** What each position of a run holds in the end, and which of them it wrote. */
export function spelled(run: RunData, ids: boolean): Spelled {
  const texts = Array.from({ length: run.header.positions }, (_, at) => identity(run.last(at), ids));
  return { texts, answer: run.header.answer_positions };
}

/**
 * What makes two tokens the same: two of one look may be written otherwise, or go on otherwise where
 * they are clipped, and then carry a digest. Ids say it best, but only where both runs are of one model.
 */
export function identity(token: Token | undefined, ids: boolean): string {
  if (!token) return "";
  if (ids) return `id ${token.id}`;
  return token.digest ? `digest ${token.digest}` : `text ${token.text}`;
}

type Headed = Pick<RunData, "header">;

/** The layer as deep in the other run: the same number where both have as many. */
export function depth(layer: number, from: Headed, to: Headed): number {
  const [n, m] = [from.header.model.layers, to.header.model.layers];
  const wanted = n === m || n < 2 ? layer : Math.round((layer / (n - 1)) * (m - 1));
  const able = to.header.layers.length ? to.header.layers : [wanted];
  return able.reduce((x, y) => (Math.abs(y - wanted) < Math.abs(x - wanted) ? y : x));
}
