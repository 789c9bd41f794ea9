/** The explorer's page: find the source, draw the app, and never leave the page blank. */

import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { opened } from "./lib/source";

const target = document.getElementById("app")!;

const line = document.createElement("p");
line.setAttribute("role", "alert");
line.className = "notice bad";

/** One line for all: what goes wrong may do so at every step. */
function say(text: string): void {
  line.textContent = text;
  target.append(line);
}

const wrong = (error: unknown) => say(`Something went wrong, and what is seen may not be whole: ${error}`);
window.addEventListener("unhandledrejection", (event) => wrong(event.reason));
// Without an error it is the browser's own remark that a size was observed late.
window.addEventListener("error", (event) => event.error && wrong(event.error));

const data = document.getElementById("anchorwatch-data")?.textContent;
if (!data) say("This page holds no runs: anchorwatch view and anchorwatch export make pages that do.");
else mount(App, { target, props: { source: opened(data) } });
