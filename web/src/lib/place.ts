/** Where one run is looked at, and how a panel says where to go. */

import type { Columns } from "./align";
import type { RunData } from "./run.svelte";
import type { PanelName, Scale, Theme } from "./state";

export interface Place {
  step: number;
  layer: number;
  head: number | null;
  token: number | null;
  /** The row of the exact map; null is the token's own. */
  query: number | null;
  group: number;
}

export type Go = (to: Partial<Omit<Place, "group">>) => void;

export interface Look {
  scale: Scale;
  measure: string;
  /** Panels whose table is open. */
  tables: readonly PanelName[];
  ontable: (name: PanelName) => void;
  theme: Theme;
  /** Grows when colours must be drawn anew. */
  drawn: number;
}

export interface Table {
  head: string[];
  rows: (string | number)[][];
  /** What a shortened table lacks, in words. */
  says?: string;
}

/** What is under a chart; `whole` for a file, else as many rows as one looks at. */
export type Tabled = (whole?: boolean) => Table;

/** What every view is given. */
export interface View {
  run: RunData;
  place: Place;
  look: Look;
  go: Go;
  /** A or B, where two runs are seen. */
  side?: string;
  widest: PanelName | null;
  onwiden: (name: PanelName | null) => void;
}

/** What every view of a difference is given. */
export interface Pair {
  a: RunData;
  b: RunData;
  placeA: Place;
  placeB: Place;
  columns: Columns;
  /** [step of A] the step of B beside it. */
  across: number[];
  look: Look;
  /** Goes to a place of A. */
  go: Go;
  /** How both are aligned. */
  words: string;
  widest: PanelName | null;
  onwiden: (name: PanelName | null) => void;
}
