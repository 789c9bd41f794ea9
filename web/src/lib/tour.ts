/** The tour: five stops, and whether it was seen. */

export interface Stop {
  /** What is pointed at: the first that is there. */
  target: string;
  title: string;
  says: string;
}

export const STOPS: readonly Stop[] = [
  {
    target: "[data-first]",
    title: "What stands out",
    says: "This sentence was made from this run. Every underlined part leads to the view that shows it; the list below it has the other findings.",
  },
  {
    target: "[data-name=map]",
    title: "Who receives attention, step by step",
    says: "A row is a step, a column a token, bright is much. A bright column is a token that takes attention all along: a sink. Hatched cells are sinks by the rule under the map.",
  },
  {
    target: "[data-name=text]",
    title: "The text at this step",
    says: "Grey blocks are not written yet. Press Space or ▶ to watch the text being written, and ← → to go a step back or on.",
  },
  {
    target: "[data-name=layers]",
    title: "Does the sink stay?",
    says: "A row is a layer. One colour along the row is a top key that stays; a white line stands wherever it moves, even to a neighbour of nearly the same colour. Click beside such a line.",
  },
  {
    target: "[data-name=heads]",
    title: "Which head does it",
    says: "A square is a head. A click opens it in every view. Words with dots under them are explained under the pointer, and ? lists the keys.",
  },
];

const KEY = "anchorwatch-tour";

/** Whether the tour was taken or declined; where nothing can be remembered, it is not offered. */
export function wasSeen(): boolean {
  try {
    return localStorage.getItem(KEY) !== null;
  } catch {
    return true; // a frame without storage of its own, as in a notebook
  }
}

export function setSeen(): void {
  try {
    localStorage.setItem(KEY, "seen");
  } catch {
    /* it will be offered again */
  }
}
