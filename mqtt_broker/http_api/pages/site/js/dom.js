// Elements of the page. Text becomes text nodes and nothing else: no string is ever read as HTML.

/** Make an element. `on` has listeners, `data` data attributes; a value of false or null is left out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** Make an element of SVG. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "value") {
      element.value = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/** Replace what is inside an element. */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** Set the text of an element, if it is another one: what a reader has selected stays selected. */
export function setText(element, text) {
  const now = String(text);
  if (element.textContent !== now) element.textContent = now;
}

/** Announce a text to screen readers. */
export function say(text) {
  const said = document.getElementById("said");
  said.textContent = "";
  requestAnimationFrame(() => { said.textContent = text; });
}

/** Make a button. `kind` is plain, primary, danger or quiet. */
export function button(label, press, { kind = "plain", title, icon, ...props } = {}) {
  return h("button", { type: "button", class: `button ${kind}`, title, on: { click: press }, ...props },
    icon ? glyph(icon) : null, label);
}

// Drawn for this page, on a grid of 16.
const GLYPHS = {
  menu: "M2 4h12M2 8h12M2 12h12",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9M10.5 10.5L14 14",
  sun: "M8 5a3 3 0 1 0 0 6a3 3 0 0 0 0-6M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5A6 6 0 1 0 13.5 9.5",
  auto: "M8 2a6 6 0 1 0 0 12a6 6 0 0 0 0-12M8 2v12M10.5 3v10M12.5 4.5v7",
  right: "M6 3l5 5l-5 5",
  down: "M3 6l5 5l5-5",
  refresh: "M13.5 8a5.5 5.5 0 1 1-1.6-3.9M13.5 1.5v3h-3",
  keys: "M1.5 4h13v8h-13zM4 6.5h.1M6.7 6.5h.1M9.3 6.5h.1M12 6.5h.1M5 9.5h6",
};

/** Draw a small sign; the text beside it, or the label of its button, says the same. */
export function glyph(name) {
  return s("svg", { class: "glyph", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: GLYPHS[name] }));
}
