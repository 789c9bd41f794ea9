/** The explorer's page: find the source, draw the app, and never leave the page blank. */

import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { opened } from "./lib/source";

const target = document.getElementById("app")!;

function say(text: string): void {
  const line = document.createElement("p");
  line.setAttribute("role", "alert");
  line.textContent = text;
  target.append(line);
}

window.addEventListener("unhandledrejection", (event) => say(`Something went wrong: ${event.reason}`));

const data = document.getElementById("anchorwatch-data")?.textContent;
if (!data) say("This page holds no runs: anchorwatch view and anchorwatch export make pages that do.");
else mount(App, { target, props: { source: opened(data) } });
