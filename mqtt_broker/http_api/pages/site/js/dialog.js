// Dialogs: a question before what cannot be undone, and forms. Escape closes; focus returns by itself.

import { button, h, put } from "./dom.js";
import { failure, field } from "./parts.js";

/**
 * Ask before an action, and do it. `fields` are { name, label, type, value, options, hint, required };
 * `act(values)` does it, and its failure is shown in the dialog. Returns its answer, or null if it was left.
 */
export function ask({ title, text = "", fields = [], action = "OK", isDanger = false, act }) {
  return new Promise((resolve) => {
    const controls = new Map(fields.map((one) => [one.name, control(one)]));
    const problem = h("div");
    const go = h("button", { type: "submit", class: `button ${isDanger ? "danger" : "primary"}` }, action);
    const leave = button("Cancel", () => dialog.close());
    const form = h("form", { on: { submit } },
      h("h2", { id: "dialog-title" }, title),
      text ? h("p", { class: "dialog-text" }, text) : null,
      fields.map((one) => row(one, controls.get(one.name))),
      problem, h("div", { class: "actions end" }, leave, go));
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", on: { close: () => { dialog.remove(); resolve(answer); } } },
      form);
    let answer = null;

    async function submit(event) {
      event.preventDefault();
      go.disabled = true;
      problem.replaceChildren();
      try {
        answer = (await act(Object.fromEntries([...controls].map(([name, one]) => [name, value(one)])))) ?? true;
        dialog.close();
      } catch (error) {
        put(problem, failure(error));
      } finally {
        go.disabled = false;
      }
    }

    document.body.append(dialog);
    dialog.showModal();
    (fields.length ? form.querySelector("input, select, textarea") : leave)?.focus();
  });
}

function control(one) {
  if (one.options) {
    return h("select", {}, one.options.map(([key, label]) =>
      h("option", { value: key, selected: String(key) === String(one.value ?? "") }, label)));
  }
  if (one.type === "textarea") return h("textarea", { rows: one.rows ?? 4, value: one.value ?? "", spellcheck: "false" });
  if (one.type === "checkbox") return h("input", { type: "checkbox", checked: Boolean(one.value) });
  return h("input", {
    type: one.type ?? "text", value: one.value ?? "", required: one.required, min: one.min, max: one.max, step: one.step,
    autocomplete: one.autocomplete ?? "off", spellcheck: "false",
  });
}

function row(one, made) {
  if (one.type !== "checkbox") return field(one.label, made, { hint: one.hint });
  return field(one.label, made, { hint: one.hint, class: "check" });
}

function value(made) {
  if (made.type === "checkbox") return made.checked;
  if (made.type === "number") return made.value === "" ? null : Number(made.value);
  return made.value;
}

/** Show text or elements in a dialog that is closed again. */
export function show(title, ...children) {
  const dialog = h("dialog", { class: "wide", "aria-labelledby": "dialog-title", on: { close: () => dialog.remove() } },
    h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), children,
      h("div", { class: "actions end" }, h("button", { class: "button", value: "close" }, "Close"))));
  document.body.append(dialog);
  dialog.showModal();
}

/** Say for a few seconds that something is done. */
export function done(text) {
  const note = h("div", { class: "toast" }, text);
  document.getElementById("toasts")?.append(note);
  setTimeout(() => note.remove(), 6000);
}
