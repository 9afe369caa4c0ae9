// Shows the page of an output that a program serves.
import { render } from "preact";

import { App } from "../app";
import { onDocumentChange } from "../extensions";
import type { Overview } from "../model";
import { begin, get } from "./api";
import "./style.css";
import "./views";

interface Page {
  overview: Overview;
  tables: string;
}

const root = document.getElementById("page") as HTMLElement;

async function load(): Promise<void> {
  const { overview, tables } = await get<Page>("page");
  document.title = overview.title;
  root.querySelector("main > p")?.remove();
  render(<App key={overview.revision} content={overview} tables={tables} />, root);
}

async function start(): Promise<void> {
  try {
    await begin();
    await load();
  } catch (error) {
    root.textContent = "";
    const shown = document.createElement("main");
    const text = document.createElement("p");
    text.setAttribute("role", "alert");
    text.textContent = error instanceof Error ? error.message : String(error);
    shown.append(text);
    root.append(shown);
  }
}

onDocumentChange(load);
void start();
