/** What is looked at: the runs that are open, the place in each, and how one leads to the other. */

import { besides, beside, columns, inWords } from "./align";
import type { Go, Place } from "./place";
import { depth, RunData, spelled } from "./run.svelte";
import type { FindingPlace, Header } from "./schema";
import { canShow, unread, type Source } from "./source";
import { clamped, decode, FIRST, SCALES, SINGLE, type PanelName, type Scale, type State } from "./state";

export class Session {
  view = $state<State>({ ...FIRST });
  notices = $state<string[]>([]);
  /** Grows when colours must be drawn anew. */
  drawn = $state(0);
  private runs = $state.raw<ReadonlyMap<number, RunData>>(new Map());
  private broken = $state.raw<ReadonlyMap<number, string[]>>(new Map());
  private layered = false;
  /** The address names a place: the page opens there, and not where something happens. */
  private named = false;
  /** What had the focus before a panel was enlarged. */
  opener: Element | null = null;

  /** The run that the cursor is in: A, or B where A cannot be shown. */
  private readonly lead = $derived(
    this.view.beside !== null && this.broken.has(this.view.run) ? this.view.beside : this.view.run,
  );
  readonly runA = $derived(this.runs.get(this.lead));
  readonly runB = $derived(
    this.view.beside === null || this.lead !== this.view.run ? undefined : this.runs.get(this.view.beside),
  );
  readonly placeA = $derived<Place>({
    step: this.view.step,
    layer: this.view.layer,
    head: this.view.head,
    token: this.view.token,
    query: this.view.query,
    group: groupOf(this.runA, this.view.group),
  });
  /** Scales that can be drawn: of a bin it is not known whose null belongs to its greatest. */
  readonly scales = $derived<readonly Scale[]>(
    [this.runA, this.runB].some((run) => run && run.header.width > 1) ? SCALES.filter((one) => one !== "lift") : SCALES,
  );
  readonly matched = $derived.by(() => {
    const [a, b] = [this.runA, this.runB];
    if (!a || !b) return null;
    const ids = a.header.model.source === b.header.model.source;
    return columns(spelled(a, ids), spelled(b, ids));
  });
  /** [step of A] the step of B beside it: as they are aligned, or as it was chosen in B. */
  readonly across = $derived.by((): number[] => {
    const { runA: a, runB: b, view } = this;
    if (!a || !b) return [];
    const found = Array.from({ length: a.header.steps }, (_, step) => beside(a.header, b.header, step, view.align));
    if (view.stepB !== null) found[view.step] = Math.min(view.stepB, b.header.steps - 1);
    return found;
  });
  readonly placeB = $derived.by(() => this.opposite());
  /** How both are aligned: steps, and what else is not the same in both. */
  readonly words = $derived.by((): string => {
    const [a, b] = [this.runA, this.runB];
    if (!a || !b) return "";
    const said = besides(a.header, b.header, this.placeA, this.placeB);
    const { align, step } = this.view;
    return [inWords(align, a.header, b.header, step, this.placeB.step), ...said].join("; ");
  });
  /** Runs that are wanted and cannot be shown, with why. */
  readonly failed = $derived(
    [this.view.run, this.view.beside].flatMap((id) => {
      const why = id === null ? undefined : this.broken.get(id);
      return why ? [{ name: this.listed[id!].name, why }] : [];
    }),
  );
  /** The panel that is enlarged, if it is there: a difference takes two runs. */
  readonly widest = $derived.by((): PanelName | null => {
    const { panel } = this.view;
    if (!this.runA || panel === null) return null;
    return this.runB || SINGLE.some((name) => name === panel) ? panel : null;
  });
  /** The run that is seen in place of one that cannot be. */
  readonly instead = $derived(this.lead === this.view.run ? undefined : this.runA?.header.name);

  /** The runs of the page; forks are added. */
  listed = $state.raw<Source["runs"]>([]);

  constructor(readonly source: Source) {
    this.listed = source.runs;
  }

  /** Go where an address says. */
  read(hash: string): void {
    const read = decode(hash, this.listed.length);
    this.layered = hash.includes("layer=");
    this.named = /[#&](step|layer|head|token|query)=/.test(hash);
    Object.assign(this.view, read.state);
    this.notices = read.notices;
    this.settle();
  }

  say(...words: string[]): void {
    this.notices = [...this.notices, ...words];
  }

  /** Look at other runs; what they do not have is left at once, before anything is drawn. */
  choose(to: Partial<Pick<State, "run" | "beside">>): void {
    Object.assign(this.view, to, { stepB: null });
    this.settle();
  }

  /** Open the runs that are wanted, the first one first. */
  async arrive(one: number, other: number | null): Promise<void> {
    await this.open(one);
    if (other !== null) await this.open(other);
  }

  private async open(id: number): Promise<void> {
    if (this.runs.has(id) || this.broken.has(id)) return;
    try {
      const told = await this.source.header(id);
      if (!canShow(told)) return this.giveUp(id, told.damage);
      const run = await RunData.open(this.source, id, told, this.first(id, told));
      const findings = run.wantFindings();
      // Soon enough, a page opens where something happens; else it goes there if nobody has moved.
      if (!this.named && id === this.view.run) await Promise.race([findings, sleep(SOON)]);
      this.runs = new Map(this.runs).set(id, run);
      this.settle();
      void findings.then((known) => this.openAt(run, known?.place ?? null));
      void run.load(run === this.runA ? this.view.layer : this.placeB.layer);
    } catch (error) {
      this.giveUp(id, [unread(error)]);
    }
  }

  /** Go where something happens, unless the address named a place or somebody has moved. */
  private openAt(run: RunData, place: FindingPlace | null): void {
    const { view } = this;
    const moved = view.step !== 0 || view.token !== null || view.layer !== middle(run.header.layers);
    if (this.named || run !== this.runA || moved || !place) return;
    this.named = true;
    if (run.header.layers.includes(place.layer!)) this.look(place, this.goA);
  }

  /** Show a finding: its place, and what it is about; what a sent page does not hold stays as it is. */
  look(place: FindingPlace, go: Go, run = this.runA): void {
    if (!run) return;
    const { view: _, scale, group, ...to } = place;
    if (!run.header.on_demand.heads && to.head != null) to.head = null;
    go({ query: null, ...to });
    if (scale && this.scales.includes(scale)) this.view.scale = scale;
    if (run.header.on_demand.heads) this.view.group = group ?? null;
  }

  /** The layer that will be seen first of a run that is not yet here. */
  private first(id: number, header: Header): number {
    const { lead, runA, view } = this;
    if (id !== lead && runA) return depth(view.layer, runA, { header });
    return this.layered ? view.layer : middle(header.layers);
  }

  private giveUp(id: number, why: string[]): void {
    this.broken = new Map(this.broken).set(id, why);
    this.settle();
  }

  /** The one place where the cursor is brought into the runs: a link, or another run, may lack what it names. */
  private settle(): void {
    const { view, runA } = this;
    if (!runA) return;
    const { steps, layers, positions, groups, model, measures } = runA.header;
    if (!this.layered && layers.length) view.layer = middle(layers);
    this.layered = true;
    if (!layers.length && view.measure === FIRST.measure) view.measure = measures[0]?.name ?? view.measure;
    const read = clamped(view, { steps, layers, heads: model.heads, positions, groups });
    Object.assign(view, read.state);
    this.say(...read.notices);
    const last = (this.runB?.header.steps ?? Infinity) - 1;
    if (view.stepB !== null && view.stepB > last) {
      this.say(`stepB ${view.stepB} is not in B: showing ${last}`);
      view.stepB = last;
    }
    if (this.scales.includes(view.scale)) return;
    this.say("colours in times the null are not for columns of several positions: showing shares");
    view.scale = FIRST.scale;
  }

  /** The place in B that is beside the place in A. */
  private opposite(): Place {
    const [a, b, at] = [this.runA, this.runB, this.placeA];
    if (!a || !b) return at;
    const group = b.header.groups.indexOf(a.header.groups[at.group]);
    return {
      step: this.across[at.step],
      layer: depth(at.layer, a, b),
      head: at.head !== null && at.head < b.header.model.heads ? at.head : null,
      token: this.partner(at.token, "a", "b"),
      query: this.partner(at.query, "a", "b"),
      group: group < 0 ? b.header.group : group,
    };
  }

  /** The position in one run of a position in the other; null where it has none. */
  private partner(position: number | null, from: "a" | "b", to: "a" | "b"): number | null {
    const column = position === null || !this.matched ? -1 : this.matched[from].indexOf(position);
    const found = column < 0 ? -1 : this.matched![to][column];
    return found < 0 ? null : found;
  }

  readonly goA: Go = (to) => {
    const layers = this.runA?.header.layers ?? [];
    if (to.layer !== undefined && layers.length && !layers.includes(to.layer)) {
      this.notices = [`layer ${to.layer} is not in this page`];
      to = { ...to, layer: this.view.layer };
    }
    Object.assign(this.view, to);
    if (to.step !== undefined) this.view.stepB = null;
  };

  readonly goB: Go = (to) => {
    const [a, b] = [this.runA, this.runB];
    if (!a || !b) return;
    const held = { ...to };
    if (to.step !== undefined) held.step = beside(b.header, a.header, to.step, this.view.align);
    if (to.layer !== undefined) held.layer = depth(to.layer, b, a);
    for (const name of ["token", "query"] as const)
      if (to[name] != null) held[name] = this.partner(to[name], "b", "a") ?? this.view[name];
    this.goA(held);
    // Every step of B can be reached, also one that no step of A is beside.
    if (to.step !== undefined && this.placeB.step !== to.step) this.view.stepB = to.step;
  };

  /** Open or shut the table of a panel. */
  readonly table = (name: PanelName): void => {
    const { tables } = this.view;
    this.view.tables = tables.includes(name) ? tables.filter((one) => one !== name) : [...tables, name];
  };

  readonly widen = (name: PanelName | null): void => {
    if (this.widest === null) this.opener = document.activeElement;
    this.view.panel = name;
    this.drawn++;
  };
}

/** Milliseconds that a page waits for findings before it opens without. */
const SOON = 400;

function sleep(time: number): Promise<void> {
  return new Promise((done) => setTimeout(done, time));
}

/** Where a reader begins who names no layer; `Run.prepare` of the Python half takes the same. */
function middle(layers: readonly number[]): number {
  return layers[layers.length >> 1];
}

/** Which of a run's query groups has a name; without a name its first. */
function groupOf(run: RunData | undefined, name: string | null): number {
  const at = name === null ? -1 : (run?.header.groups.indexOf(name) ?? -1);
  return at < 0 ? (run?.header.group ?? 0) : at;
}
