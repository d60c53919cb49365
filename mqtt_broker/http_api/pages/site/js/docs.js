// Shows openapi.json: its operations, parameters, bodies and answers. Text is put in as text alone.

const list = document.getElementById("operations");
const filter = document.getElementById("filter");

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function nameOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(nameOf).join(" or ");
  if (schema.enum) return schema.enum.join(", ");
  if (schema.type === "array") return `list of ${nameOf(schema.items) || "anything"}`;
  return schema.type || "anything";
}

function limitsOf(schema) {
  const said = [];
  if (schema.minimum !== undefined) said.push(`from ${schema.minimum}`);
  if (schema.maximum !== undefined) said.push(`to ${schema.maximum}`);
  if (schema.maxLength !== undefined) said.push(`up to ${schema.maxLength} characters`);
  if (schema.default !== undefined && schema.default !== "") said.push(`default ${schema.default}`);
  return said.join(", ");
}

function table(rows) {
  const body = element("tbody");
  for (const row of rows) body.append(element("tr", "", ...row.map((text) => element("td", text))));
  return element("table", "", body);
}

function schemaTable(document_, reference) {
  const found = document_.components.schemas[nameOf(reference)];
  if (!found || !found.properties) return element("p", nameOf(reference));
  const needed = new Set(found.required || []);
  return table(
    Object.entries(found.properties).map(([name, one]) => [
      name,
      nameOf(one) + (needed.has(name) ? "" : ", optional"),
      [one.description, limitsOf(one)].filter(Boolean).join("; "),
    ]),
  );
}

function details(title, content) {
  const made = element("details", "", element("summary", title), content);
  return made;
}

function operation(document_, path, method, one) {
  const heading = element("h2");
  const word = element("span", method.toUpperCase());
  word.className = "method";
  heading.append(word, element("code", path));
  const made = element("article", "", heading, element("p", one.summary));
  made.id = one.operationId;
  if (one.description) made.append(element("p", one.description));
  made.append(element("p", one["x-role"] ? `Role: ${one["x-role"]}` : "Needs no token."));
  if (one.parameters) {
    const rows = one.parameters.map((each) => [
      each.name,
      `${nameOf(each.schema)}, in ${each.in}${each.required ? "" : ", optional"}`,
      [each.description, limitsOf(each.schema)].filter(Boolean).join("; "),
    ]);
    made.append(details("Parameters", table(rows)));
  }
  const sent = one.requestBody?.content["application/json"]?.schema;
  if (sent) made.append(details(`Body: ${nameOf(sent)}`, schemaTable(document_, sent)));
  for (const [status, answer] of Object.entries(one.responses)) {
    if (status >= "300") continue;
    const schema = Object.values(answer.content)[0].schema;
    made.append(details(`${status}: ${nameOf(schema)}`, schemaTable(document_, schema)));
  }
  const others = Object.keys(one.responses).filter((status) => status >= "300");
  made.append(element("p", `Errors: ${others.join(", ")}`));
  return made;
}

function apply() {
  const wanted = filter.value.toLowerCase();
  for (const one of list.children) {
    one.hidden = !one.textContent.toLowerCase().includes(wanted);
  }
}

async function show() {
  const answer = await fetch("/api/v1/openapi.json");
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const found = await answer.json();
  const made = [];
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const [method, one] of Object.entries(methods)) {
      made.push(operation(found, path, method, one));
    }
  }
  list.replaceChildren(...made);
  apply();
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

filter.addEventListener("input", apply);
show().catch((error) => list.replaceChildren(element("p", `Not loaded: ${error.message}`)));
