// Shows the page of an output that a program serves.
import { render } from "preact";

import { App } from "../app";
import { onDocumentChange } from "../extensions";
import type { Overview } from "../model";
import { begin, get } from "./api";
import { type Run, Runs } from "./runs";
import "./style.css";
import "./views";

// Of an output its content; of a folder of outputs, these.
type Page = { overview: Overview; tables: string } | { runs: Run[] };

const root = document.getElementById("page") as HTMLElement;

async function load(): Promise<void> {
  const page = await get<Page>("page");
  if ("runs" in page) {
    document.title = "Runs";
    render(<Runs runs={page.runs} />, root);
    return;
  }
  const { overview, tables } = page;
  document.title = overview.title;
  render(<App key={overview.revision} content={overview} tables={tables} />, root);
}

async function start(): Promise<void> {
  try {
    await begin();
    root.textContent = "";
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
