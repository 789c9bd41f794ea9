import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// One script and one style with fixed names: Python puts them into a page (explorer/page.py).
export default defineConfig({
  plugins: [svelte()],
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  build: {
    outDir: "../src/anchorwatch/explorer/built",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    lib: {
      entry: "src/main.ts",
      name: "anchorwatch",
      formats: ["iife"],
      fileName: () => "app.js",
      cssFileName: "app",
    },
  },
  test: { include: ["test/**/*.test.ts"] },
});
