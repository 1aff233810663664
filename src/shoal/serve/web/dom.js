// Elements and their updates. Text is only ever set as text: no string becomes HTML.

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: `on…` properties are listeners, `style` is an object, other properties are attributes.
 * @param {string} tag  name, with classes after dots: "td.num"
 * @param {Record<string, any>} [props]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const el = name === "svg" || name === "path" ? document.createElementNS(SVG, name) : document.createElement(name);
  if (classes.length) el.setAttribute("class", classes.join(" "));
  el._on = {};
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) el[key] = el._on[key] = value;
    else if (key === "style") for (const [k, v] of Object.entries(value)) el.style.setProperty(k, v);
    else if (key === "key") el._key = String(value);
    else if (key === "own") el._own = true; // its children belong to other code
    else if (key === "class") el.setAttribute("class", [...classes, value].join(" "));
    else el.setAttribute(key, value === true ? "" : String(value));
  }
  append(el, children);
  return el;
}

function append(el, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(el, child);
    else if (child !== null && child !== undefined && child !== false)
      el.append(child instanceof Node ? child : String(child));
  }
}

/** Change the children of `el` to these, keeping elements (and with them focus and scroll) where they match. */
export function render(el, ...children) {
  const wanted = document.createElement("div");
  append(wanted, children);
  children_(el, wanted);
}

function children_(old, wanted) {
  const keyed = new Map();
  for (const child of old.childNodes) if (child._key) keyed.set(child._key, child);
  let at = old.firstChild;
  for (let next of [...wanted.childNodes]) {
    let match = next._key ? keyed.get(next._key) : at && !at._key && same(at, next) ? at : null;
    if (match && !same(match, next)) match = null;
    if (match) {
      if (match !== at) old.insertBefore(match, at);
      else at = at.nextSibling;
      if (next._build && match._values?.every((value, i) => value === next._values[i])) continue;
      patch(match, next._build ? built(next) : next);
    } else old.insertBefore(built(next), at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

/**
 * A child with a key that `render` makes by `build` only if its `values` are not those of the last time.
 * @param {string} tag  name of the element that `build` returns
 * @param {any[]} values  all that the element shows
 * @param {() => HTMLElement} build
 */
export function unlessSame(tag, key, values, build) {
  return Object.assign(document.createElement(tag), { _key: key, _values: values, _build: build, _on: {} });
}

/** The element with every part that is still to be built. */
function built(el) {
  if (el._build) return Object.assign(el._build(), { _key: el._key, _values: el._values });
  for (const child of [...el.childNodes]) { const whole = built(child); if (whole !== child) child.replaceWith(whole); }
  return el;
}

const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && a._key === b._key;

function patch(old, next) {
  if (old.nodeType !== 1) { if (old.data !== next.data) old.data = next.data; return; }
  for (const { name } of [...old.attributes])
    if (name !== "style" && !next.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  for (const { name, value } of next.attributes)
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style && old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText;
  for (const key of Object.keys(old._on || {})) if (!(key in next._on)) old[key] = null;
  Object.assign(old, next._on);
  old._on = next._on;
  old._values = next._values;
  if (!old._own) children_(old, next);
}

/** A place for an element that is made once and keeps its own children, focus and scroll. */
export const keep = (el, key, cls) => h("div", { key, own: true, class: cls || key }, el.isConnected ? null : el);

/** Show a tooltip near a point; empty children hide it. */
export function tip(x, y, ...children) {
  const el = document.getElementById("tip");
  el.hidden = !children.length;
  if (el.hidden) return;
  el.replaceChildren();
  append(el, children);
  const { width, height } = el.getBoundingClientRect();
  el.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  el.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 10) : y + 18}px`;
}
