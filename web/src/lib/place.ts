/** Where one run is looked at, and how a panel says where to go. */

import type { RunData } from "./run.svelte";
import type { PanelName, Scale, Theme } from "./state";

export interface Place {
  step: number;
  layer: number;
  head: number | null;
  token: number | null;
  group: number;
}

export type Go = (to: Partial<Place>) => void;

export interface Look {
  scale: Scale;
  measure: string;
  tables: boolean;
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
