/** A table as a file for spreadsheets. */

import type { Table } from "./place";

/** CSV with a line for the heading: numbers as they are, words so that no spreadsheet runs them. */
export function csv({ head, rows }: Table): string {
  return [head, ...rows].map((row) => `${row.map(quoted).join(",")}\r\n`).join("");
}

function quoted(cell: string | number): string {
  if (typeof cell === "number") return String(cell);
  // A word that begins like a formula would be run.
  const plain = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}
