/**
 * Bundles src/ into static/dist/: app.js (+ chunks that load on demand), app.css, usage.js, icons.json.
 * Django's collectstatic gives the entries hashed names; the chunks carry a hash of their own.
 */
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, "..", "static", "dist");
const templates = join(here, "..", "templates");

/** The names in {% icon "…" %} of all templates: only these are shipped. */
function usedIcons() {
  const names = new Set();
  for (const entry of readdirSync(templates, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || !entry.name.endsWith(".html")) continue;
    const text = readFileSync(join(entry.parentPath, entry.name), "utf8");
    for (const [, name] of text.matchAll(/\{%\s*icon\s+"([a-z0-9-]+)"/g)) names.add(name);
  }
  return [...names].sort();
}

/** What is between <svg …> and </svg> of one Lucide icon. */
function shapes(name) {
  const svg = readFileSync(join(here, "node_modules", "lucide-static", "icons", `${name}.svg`), "utf8");
  return svg.replace(/^[\s\S]*?<svg[\s\S]*?>/, "").replace("</svg>", "").replace(/\s+/g, " ").trim();
}

rmSync(dist, { recursive: true, force: true });
await esbuild.build({
  entryPoints: [
    { in: join(here, "src", "app.js"), out: "app" },
    { in: join(here, "src", "app.css"), out: "app" },
    { in: join(here, "src", "usage.js"), out: "usage" },
  ],
  outdir: dist,
  bundle: true,
  splitting: true,
  format: "esm",
  minify: true,
  target: "es2022",
  legalComments: "none",
  chunkNames: "[name]-[hash]",
  logLevel: "warning",
});
writeFileSync(join(dist, "icons.json"), JSON.stringify(Object.fromEntries(usedIcons().map((n) => [n, shapes(n)]))));
