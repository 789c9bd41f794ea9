/** One page, three sources of runs: inside the page, beside it as files, or a local server. */

import { inflated, unpack, type Packet } from "./packet";
import type { DamagedHeader, Header } from "./schema";

/** Of a run that cannot be shown there is only a name and why. */
export type Told = Header | DamagedHeader;

export interface Source {
  kind: "inline" | "static" | "api";
  /** By their places in this list, which is how a page names runs; a server has numbers of its own. */
  runs: { id: number; name: string }[];
  header(run: number): Promise<Told>;
  packet(run: number, key: string): Promise<Packet>;
  /** Ask a server to change something of a run, or with none how far it is; sent pages cannot. */
  change?(run: number | null, what: string, body?: object): Promise<unknown>;
  /** The place of a run that a server has under a number; a new one is put last. */
  place?(number: number): number;
}

interface Embedded {
  source: "inline" | "static" | "api";
  runs: { id: number; name: string; header?: Told; packets?: Record<string, string> }[];
}

/** A part that is not there; the message says how to get it. */
export class Missing extends Error {}

/** Why a part is not there, in words: it says so itself, or what came is damaged. */
export function unread(error: unknown): string {
  return error instanceof Missing ? error.message : `what the page was given of it cannot be read: ${error}`;
}

export function opened(text: string, fetcher: typeof fetch = fetch): Source {
  const data = JSON.parse(text) as Embedded;
  const runs = data.runs.map(({ name }, id) => ({ id, name }));
  return data.source === "inline"
    ? { kind: "inline", runs, ...inline(data) }
    : { kind: data.source, runs, ...asked(fetcher, data) };
}

function inline(data: Embedded): Pick<Source, "header" | "packet"> {
  return {
    async header(run) {
      const told = data.runs[run]?.header;
      if (!told) throw new Missing("there is no such run");
      return told;
    },
    async packet(run, key) {
      const held = data.runs[run]?.packets?.[key];
      if (held === undefined) throw new Missing(`this page does not hold ${key}`);
      return unpack(await inflated(held));
    },
  };
}

function asked(fetcher: typeof fetch, data: Embedded): Pick<Source, "header" | "packet" | "change" | "place"> {
  const numbers = data.runs.map(({ id }) => id);
  async function get(path: string, sent?: RequestInit): Promise<Response> {
    let answer: Response;
    try {
      answer = await fetcher(path, sent);
    } catch {
      throw new Missing("nobody answers: the server has stopped, or the files have gone");
    }
    if (answer.ok) return answer;
    const said = await answer.json().catch(() => ({ error: `the server says ${answer.status}` }));
    throw new Missing(String(said.error));
  }
  const headers = { "content-type": "application/json" };
  return {
    ...(data.source === "api" && {
      change: async (run: number | null, what: string, body?: object) => {
        const path = run === null ? `data/${what}` : `data/${numbers[run]}/${what}`;
        return (await get(path, body && { method: "POST", headers, body: JSON.stringify(body) })).json();
      },
      place: (number: number) => (numbers.includes(number) ? numbers.indexOf(number) : numbers.push(number) - 1),
    }),
    header: async (run) => (await get(`data/${numbers[run]}/header.json`)).json(),
    packet: async (run, key) => unpack(await (await get(`data/${numbers[run]}/${key}.bin`)).arrayBuffer()),
  };
}

export function canShow(told: Told): told is Header {
  return "frames" in told;
}
