/** Two runs are seen on one scale: limits that hold for both. */

import type { Limits } from "./values";

export interface Shared {
  /** Of the sink map and the text. */
  map: Limits | null;
  /** The greatest share of any key. */
  tops: number | null;
  /** Of the head grid. */
  heads: Limits | null;
}
