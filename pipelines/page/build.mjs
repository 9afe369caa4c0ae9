// Bundles the page into bundle/page.js and bundle/page.css, and what only a
// served page has into bundle/served.js and bundle/served.css: the same sources give the same bytes.
import { build } from "esbuild";

await build({
  entryPoints: { page: "src/main.tsx", served: "src/served/main.tsx" },
  outdir: "bundle",
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "inline",
  logLevel: "warning",
});
