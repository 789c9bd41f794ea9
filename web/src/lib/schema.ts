/** Written by web/make_schema.py from the Python half: do not edit. */

/** An integer that does not exist. */
export const MISSING = -1;

/** What a position is at a frame. */
export const PROMPT = 0;
export const SPECIAL = 1;
export const MASKED = 2;
export const FRESH = 3;
export const WRITTEN = 4;
export const ABSENT = 5;

/** A token of the canvas history; `canvas` counts in the header's list of them. */
export interface Token {
  id: number;
  text: string;
  length?: number;
  escaped?: string;
  bytes?: string;
  /** Of one that is not shown whole. */
  digest?: string;
}

/** A quantity with a number for each step, layer and head. */
export interface Measure {
  name: string;
  unit: string;
  says: string;
  /** It comes from a table of a metric, and has a null and an interval. */
  table?: boolean;
  /** Of a verdict, what each number stands for. */
  words?: string[];
}

/** The model of a run. */
export interface HeaderModel {
  source: string;
  family: string;
  kind: string;
  visibility: string;
  layers: number;
  heads: number;
  /** What was trained with the network: sink tokens, gates. */
  parts: string[];
}

/** What a page may ask for later. */
export interface OnDemand {
  heads: boolean;
  rows: boolean;
  maps: boolean;
  /** A model is at hand: candidates, and forks of the run. */
  live: boolean;
}

/** Everything a page is told of a run but arrays. */
export interface Header {
  version: number;
  anchorwatch: string;
  name: string;
  digest: string;
  model: HeaderModel;
  decoding: string;
  edits: string[];
  fork: number | null;
  seed: number;
  prompt: string;
  answer: string;
  frames: number;
  steps: number;
  positions: number;
  answer_positions: number[];
  progress: number[];
  roles: string[];
  regions: string[];
  classes: string[];
  class_kind: "region" | "role";
  /** The last class is keys that additions put there, such as a sink token: no positions. */
  added: boolean;
  tokens: Token[];
  rule: string;
  /** What a sink is: a key that ... */
  rule_words: string;
  left_masked: number;
  damage: string[];
  lost: string[];
  /** Positions in a bin. */
  width: number;
  bins: number;
  /** Positions of a part that is had without bins. */
  part: number;
  groups: string[];
  group: number;
  layers: number[];
  null_of: number[];
  measures: Measure[];
  flow: boolean;
  maps: number[][];
  on_demand: OnDemand;
  left_out: string[];
}

/** Of a run that cannot be shown there is only a name and why. */
export interface DamagedHeader {
  version: number;
  name: string;
  damage: string[];
}

/** How far the fork is that the page asked for. */
export interface ForkProgress {
  state: "idle" | "running" | "done" | "failed";
  done: number;
  steps: number;
  /** The number of the new run, where it is done. */
  run: number | null;
  name: string;
  error: string;
}

/** Where a finding can be seen; what is absent stays as it is. */
export interface FindingPlace {
  step?: number;
  layer?: number;
  /** null is the mean over heads. */
  head?: number | null;
  token?: number;
  query?: number;
  group?: string;
  scale?: "share" | "lift";
  view: "map" | "layers" | "text" | "heads" | "flow" | "exact";
}

/** A piece of a sentence; with a place, a link to where it can be seen. */
export interface SentencePart {
  text: string;
  place?: FindingPlace;
}

/** Something that stands out in a run, in words and in numbers. */
export interface Finding {
  kind: "sink" | "move" | "split" | "retrieval";
  words: SentencePart[];
  place: FindingPlace;
  value: number;
  /** What even attention gives. */
  null: number;
  /** Value over null; null where that is 0. */
  lift: number | null;
}

/** The strongest findings of one kind. */
export interface FindingList {
  kind: "sink" | "move" | "split" | "retrieval";
  findings: Finding[];
  /** How many weaker ones there are. */
  more: number;
  /** Why there is none; empty where there is one. */
  none: string;
}

/** What stands out in a run, and where a page opens. */
export interface Findings {
  words: SentencePart[];
  place: FindingPlace | null;
  lists: FindingList[];
}

/** The arrays of each kind of packet. */
export interface Packets {
  frames: { canvas: Int32Array; role: Uint8Array; committed_at: Int32Array; logprob: Float32Array; margin: Float32Array; region: Int32Array; keys: Int32Array };
  layer: { codes: Uint8Array; sink_step: Int32Array; sink_key: Int32Array; sink_share: Float32Array; top_key: Int32Array; top_share: Float32Array; head_top_key: Int32Array; head_top_share: Float32Array; head_sink_share: Float32Array; head_sinks: Int32Array; flow: Float32Array };
  tile: { codes: Uint8Array; sink_step: Int32Array; sink_key: Int32Array; sink_share: Float32Array };
  part: { shares: Float32Array; null: Float32Array };
  row: { shares: Float32Array; null: Float32Array };
  null: { codes: Uint8Array };
  measure: { values: Float32Array };
  flow: { flow: Float32Array };
  map: { map: Float32Array };
  findings: {  };
  candidates: { position: Int32Array; token: Int32Array; probability: Float32Array };
}
