// The mark, and the colours: as the system has them, light or dark.
import { h } from "./dom.js";

const THEMES = ["auto", "light", "dark"];

/** The mark of Shoal. */
export function mark() {
  return h("svg", { viewBox: "0 0 24 16", width: "24", height: "16", "aria-hidden": "true" },
    h("path", { d: "M1 5c4-5 10-5 14 0l5-4v8l-5-4C11 10 5 10 1 5z" }), h("path", { d: "M7 13c3-3 7-3 9 0l4-3v6l-4-3c-2 3-6 3-9 0z", opacity: ".6" }));
}

const stored = () => { try { return localStorage.getItem("shoal-theme"); } catch { return null; } };
export const theme = () => (THEMES.includes(stored()) ? stored() : "auto");
export function applyTheme() {
  document.documentElement.dataset.theme = theme();
  dispatchEvent(new Event("shoal-theme"));
}
export function nextTheme() {
  try { localStorage.setItem("shoal-theme", THEMES[(THEMES.indexOf(theme()) + 1) % 3]); } catch { /* not stored */ }
  applyTheme();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
