// A list of what comes in, newest first and bounded: a page that is open for a day does not grow.

import { h } from "./dom.js";

/** A feed of at most `most` entries. Entries are put in together, once a frame. */
export function feed(label, most = 500, from = "new") {
  const list = h("ul");
  const element = h("div", { class: "feed", tabindex: "0", "aria-label": label, role: "log", "aria-live": "off" }, list);
  let waiting = [];
  let isDue = false;

  function flush() {
    isDue = false;
    const nodes = waiting.slice(-most);
    waiting = [];
    if (from === "new") list.prepend(...nodes.reverse());
    else {
      const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
      list.append(...nodes);
      if (isAtEnd) element.scrollTop = element.scrollHeight;
    }
    while (list.childElementCount > most) (from === "new" ? list.lastChild : list.firstChild).remove();
  }

  return {
    element,
    add(node) {
      waiting.push(node);
      if (waiting.length > most * 2) waiting = waiting.slice(-most);
      if (!isDue) {
        isDue = true;
        if (document.hidden) setTimeout(flush, 1000);
        else requestAnimationFrame(flush);
      }
    },
    clear() { waiting = []; list.replaceChildren(); },
    get size() { return list.childElementCount + waiting.length; },
  };
}
