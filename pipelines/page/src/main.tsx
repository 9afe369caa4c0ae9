// Shows what the page holds.
import { render } from "preact";

import type { Overview as Content } from "./model";
import { Overview } from "./overview";
import "./style.css";

const held = document.getElementById("overview");
const root = document.getElementById("page");
if (held && root) {
  const content = JSON.parse(held.textContent ?? "") as Content;
  document.title = content.title;
  root.textContent = "";
  render(<Overview content={content} />, root);
}
