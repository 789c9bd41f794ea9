/** Going from place to place: what keys and buttons do. */

import { beside } from "./align";
import type { Session } from "./session.svelte";
import { ALIGNS, PANELS, type PanelName } from "./state";

/** The one after, round and round. */
export function next<T>(able: readonly T[], now: T): T {
  return able[(able.indexOf(now) + 1) % able.length];
}

/** The last step of A, and the step of B beside it. */
function ends({ view, runA, runB }: Session): [number, number] {
  const last = (runA?.header.steps ?? 1) - 1;
  return [last, runA && runB ? beside(runA.header, runB.header, last, view.align) : 0];
}

/** The cursor runs over the steps of A, and after its last one over what is left of B. */
function cursor(at: Session): number {
  const [last, from] = ends(at);
  const { step, stepB } = at.view;
  return step === last && stepB !== null ? step + Math.max(stepB - from, 0) : step;
}

function furthest(at: Session): number {
  const [last, from] = ends(at);
  return last + (at.runB ? at.runB.header.steps - 1 - from : 0);
}

export function stepTo(at: Session, to: number): void {
  if (!at.runA) return;
  const [last, from] = ends(at);
  const held = Math.min(Math.max(to, 0), furthest(at));
  at.goA({ step: Math.min(held, last) });
  if (held > last) at.view.stepB = from + held - last;
}

export function stepBy(at: Session, by: number): void {
  stepTo(at, cursor(at) + by);
}

export function atEnd(at: Session): boolean {
  return cursor(at) >= furthest(at);
}

export function layerBy({ view, runA }: Session, by: number): void {
  if (!runA) return;
  const able = runA.header.layers;
  const at = able.indexOf(view.layer) + by;
  if (at >= 0 && at < able.length) view.layer = able[at];
}

export function headBy({ view, runA }: Session, by: number): void {
  if (!runA) return;
  const at = (view.head ?? -1) + by;
  view.head = at < 0 ? null : Math.min(at, runA.header.model.heads - 1);
}

export function tokenBy({ view, runA }: Session, by: number): void {
  if (!runA) return;
  const from = view.token ?? (by > 0 ? -1 : runA.header.positions);
  view.token = Math.min(Math.max(from + by, 0), runA.header.positions - 1);
}

/** With the next run, or with none. */
export function compare(at: Session): void {
  const { view, listed } = at;
  const other = listed.find((one) => one.id !== view.run)?.id ?? null;
  at.choose({ beside: view.beside === null ? other : null });
}

/** The next token that holds the words. */
export function find(at: Session): void {
  const { view, runA } = at;
  if (!runA || !view.find) return;
  const sought = view.find.toLowerCase();
  const from = view.token ?? -1;
  for (let by = 1; by <= runA.header.positions; by++) {
    const token = (from + by) % runA.header.positions;
    if (!runA.last(token)?.text.toLowerCase().includes(sought)) continue;
    if (token === view.token) at.notices = [`no other token holds “${view.find.slice(0, 40)}”`];
    view.token = token;
    return;
  }
  at.notices = [`no token holds “${view.find.slice(0, 40)}”`];
}

export function leave(at: Session): void {
  if (at.widest !== null) at.widen(null);
  else at.view.token = at.view.query = null;
}

/** The panel that has the focus; without one, the sink map. */
function focused(event: KeyboardEvent): PanelName {
  const name = (event.target as HTMLElement).closest<HTMLElement>("[data-name]")?.dataset.name;
  return PANELS.find((one) => one === name) ?? "map";
}

export type Keys = Record<string, (event: KeyboardEvent) => void>;

/** What each key does; `does` is what the page itself has to do. */
export function keys(at: Session, does: { play(): void; help(): void; seek(): void }): Keys {
  const { view } = at;
  const far = (event: KeyboardEvent) => (event.shiftKey ? 10 : 1);
  return {
    ArrowLeft: (event) => stepBy(at, -far(event)),
    ArrowRight: (event) => stepBy(at, far(event)),
    Home: () => stepTo(at, 0),
    End: () => stepTo(at, Infinity),
    ArrowUp: () => layerBy(at, -1),
    ArrowDown: () => layerBy(at, 1),
    "[": () => headBy(at, -1),
    "]": () => headBy(at, 1),
    ",": () => tokenBy(at, -1),
    ".": () => tokenBy(at, 1),
    " ": does.play,
    "/": does.seek,
    c: () => compare(at),
    a: () => (view.align = next(ALIGNS, view.align)),
    d: () => (at.runB ? at.widen(at.widest === "difference" ? null : "difference") : undefined),
    n: () => (view.scale = next(at.scales, view.scale)),
    t: () => (view.tables = view.tables.length ? [] : PANELS),
    m: (event) => at.widen(at.widest === null ? focused(event) : null),
    "?": does.help,
    Escape: () => leave(at),
  };
}

/** What a box that scrolls does with keys, once it has the focus. */
const SCROLLS = /^(Arrow.*|Home|End| )$/;

/** A key goes to the page unless a control, a dialogue or a box that scrolls has a use for it. */
export function press(event: KeyboardEvent, able: Keys, single: boolean): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("dialog")) return;
  if (target.closest("input, select, textarea")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (event.key.length === 1 && !single) return;
  if (event.key === " " && target.closest("button, a, summary")) return;
  if (SCROLLS.test(event.key) && target.closest("[role=region]")) return;
  const does = able[event.key];
  if (!does) return;
  event.preventDefault();
  does(event);
}
