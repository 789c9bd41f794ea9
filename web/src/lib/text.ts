/** Token text on the page: a label for axes and readings, and what stands in the text. */

import type { Token } from "./schema";

const MARK = "░";

/** On one line, with spaces seen: for labels and sentences. */
export function label(token: Token | undefined, longest = 18): string {
  if (!token) return "";
  if (token.text === "") return token.bytes ? `‹${token.bytes}›` : "(empty)";
  const flat = token.text.replaceAll("⏎\n", "⏎").replaceAll(" ", "␣");
  const letters = [...flat];
  return letters.length <= longest ? flat : letters.slice(0, longest - 1).join("") + "…";
}

/** In the text: as it is, line breaks kept; very long ones say how long they are. */
export function shown(token: Token | undefined): string {
  if (!token) return "";
  if (token.text === "") return token.bytes ? `‹${token.bytes}›` : "∅";
  return token.length ? `${token.text}… (${token.length.toLocaleString("en")} characters)` : token.text;
}

/** A masked position, as wide as what will stand there, so that nothing moves while it is written. */
export function veiled(token: Token | undefined): string {
  const text = shown(token);
  if (text === "") return MARK;
  return text.replaceAll(/[^\s]/gu, MARK);
}
