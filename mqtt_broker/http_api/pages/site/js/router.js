// The address of a view: `#/clients/pump-7?sort=-backlog`. Any text may be a part of it.

/** The address of parts and of a query. */
export function address(parts, query = {}) {
  const path = `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
  const search = new URLSearchParams(Object.entries(query)
    .filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false)).toString();
  return search ? `${path}?${search}` : path;
}

/** The parts and the query of an address; what is malformed is taken as it stands. */
export function parse(hash) {
  const [path, search = ""] = split(hash.replace(/^#\/?/, ""), "?");
  const parts = path.split("/").filter((part) => part !== "").map(decode);
  return { parts, query: Object.fromEntries(new URLSearchParams(search)) };
}

function split(text, at) {
  const found = text.indexOf(at);
  return found < 0 ? [text] : [text.slice(0, found), text.slice(found + 1)];
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
