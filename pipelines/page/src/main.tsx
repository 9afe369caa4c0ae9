// Shows what the page holds.
import { render } from "preact";

import { App } from "./app";
import type { Overview as Content } from "./model";
import "./style.css";

const held = document.getElementById("overview");
const tables = document.getElementById("tables");
const root = document.getElementById("page");
if (held && tables && root) {
  const content = JSON.parse(held.textContent ?? "") as Content;
  document.title = content.title;
  root.textContent = "";
  render(<App content={content} tables={tables.textContent ?? ""} />, root);
}
