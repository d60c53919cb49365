// The form to log in: a user and a password, or a token. Neither is kept by the page.

import { h, put } from "./dom.js";
import { failure, field, tabs } from "./parts.js";

/** The form; `enter(me)` goes on when the broker has accepted what was given. */
export function loginForm(api, enter) {
  const byUser = form([
    { name: "name", label: "User", autocomplete: "username" },
    { name: "password", label: "Password", type: "password", autocomplete: "current-password" },
  ]);
  const byToken = form([{ name: "token", label: "Token", type: "password", autocomplete: "off",
    hint: "The broker's http_token, or one of http_tokens." }]);

  function form(fields) {
    const problem = h("div");
    const inputs = fields.map((one) => [one, h("input", { type: one.type ?? "text", required: true,
      autocomplete: one.autocomplete, autocapitalize: "none", spellcheck: "false" })]);
    const go = h("button", { type: "submit", class: "button primary" }, "Log in");
    async function submit(event) {
      event.preventDefault();
      go.disabled = true;
      problem.replaceChildren();
      try {
        enter(await api.post("login", Object.fromEntries(inputs.map(([one, input]) => [one.name, input.value]))));
      } catch (error) {
        put(problem, failure(error));
        inputs.at(-1)[1].select();
      } finally {
        go.disabled = false;
      }
    }
    return h("form", { class: "login-form", on: { submit } },
      inputs.map(([one, input]) => field(one.label, input, { hint: one.hint })), problem, go);
  }

  return h("main", { id: "main", class: "alone login" },
    h("h1", {}, h("img", { src: "site/icon.svg", alt: "", width: 28, height: 28 }), "FleetMQ"),
    tabs("How to log in", [
      { key: "user", label: "User", make: () => byUser },
      { key: "token", label: "Token", make: () => byToken },
    ]));
}
