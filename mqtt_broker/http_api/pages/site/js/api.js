// Requests to the broker's API, and what an operator can do about a request that fails.

/** A request that failed: the problem document of the answer, or no answer at all (status 0). */
export class ApiError extends Error {
  constructor(status, name, detail, extras = {}) {
    super(detail);
    this.status = status;
    this.error = name;
    this.extras = extras;
  }

  /** The broker did not answer, or says that it cannot now: the same request may succeed later. */
  get isAway() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }

  /** The broker has no such path: it is older, or was built without it. */
  get isAbsent() {
    return this.status === 404 && this.error === "NotFound" && /^there is nothing at /.test(this.message);
  }
}

/** A name as one part of a path: any text, with `~` behind a `.` or `..`, which URLs lose. */
export function pathPart(name) {
  return encodeURIComponent(/^\.{1,2}~*$/.test(name) ? `${name}~` : name);
}

/** What to do about a failed request, in a sentence. */
export function advice(error) {
  if (!(error instanceof ApiError)) return "Reload the page. If it happens again, report it with the text above.";
  if (error.isAbsent) return "This broker does not offer it. A newer broker may.";
  if (error.status === 0) return "Check that the broker runs and that this machine reaches it; the page tries again.";
  switch (error.status) {
    case 400: return "Correct the value that is named, and send it again.";
    case 401: return "Log in again.";
    case 403: return "Ask for a role that may do this, or log in as somebody who has it.";
    case 404: return "It has gone meanwhile, or its name is different.";
    case 409: return "The state of the broker does not allow it: the text above says why.";
    case 412: return "Somebody else changed it meanwhile. Read it again, then repeat the change.";
    case 413: return "Send less at once.";
    case 429: return "Too many requests: wait a few seconds.";
    case 503: return "The broker is starting, stopping or overloaded; the page tries again.";
    default: return error.status >= 500 ? "The broker's log has the details (view Logs)." : "";
  }
}

const ANSWER_MS = 15_000;

export class Api {
  /** `onState(isAway)` hears whether the broker answers, `onLogin()` that a login is needed. */
  constructor({ base = new URL("api/v1/", document.baseURI), onState = () => {}, onLogin = () => {} } = {}) {
    this.base = base;
    this.csrf = "";
    this.onState = onState;
    this.onLogin = onLogin;
  }

  get(path, query = {}, signal = undefined) {
    return this.send("GET", path, { query, signal });
  }

  post(path, body = {}, options = {}) {
    return this.send("POST", path, { body, ...options });
  }

  /** Send a request and return the body of its answer; raise ApiError. */
  async send(method, path, options = {}) {
    const answer = await this.open(method, path, options);
    const text = await answer.text().catch(() => {
      throw new ApiError(0, "Lost", "The connection was lost during the answer.");
    });
    if (answer.status === 204 || text === "") return null;
    const found = parsed(text);
    if (found === undefined) {
      throw new ApiError(0, "NotJson", `${path}: the answer is not JSON; is there a proxy between?`);
    }
    return found;
  }

  /** Send a request and return its answer, to be read piece by piece. */
  async open(method, path, { query = {}, body, signal, headers = {}, isStream = false } = {}) {
    const url = new URL(path, this.base);
    for (const [name, value] of Object.entries(query)) {
      if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
    }
    const timeout = new AbortController();
    const timer = isStream ? 0 : setTimeout(() => timeout.abort(), ANSWER_MS);
    const stop = () => timeout.abort();
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) stop();
    const sent = { Accept: "application/json", ...headers };
    if (method !== "GET" && this.csrf) sent["X-CSRF-Token"] = this.csrf;
    if (body !== undefined) sent["Content-Type"] = "application/json";
    try {
      const answer = await fetch(url, {
        method,
        headers: sent,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: timeout.signal,
        credentials: "same-origin",
        redirect: "error",
        cache: "no-store",
      });
      if (answer.ok) {
        this.onState(false);
        return answer;
      }
      throw await problem(answer, path);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw this.#failed(error, path);
    } finally {
      clearTimeout(timer);
      if (!isStream) signal?.removeEventListener("abort", stop);
    }
  }

  #failed(error, path) {
    const found = error instanceof ApiError
      ? error
      : new ApiError(0, "Unreachable", error?.name === "AbortError"
        ? `The broker did not answer within ${ANSWER_MS / 1000} s.`
        : "The broker cannot be reached.");
    this.onState(found.isAway);
    if (found.status === 401 && path !== "login") this.onLogin();
    return found;
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

async function problem(answer, path) {
  const found = parsed(await answer.text().catch(() => "")) ?? {};
  const name = found.error ?? found.title ?? answer.statusText;
  const detail = found.detail ?? found.text ?? found.title ?? `${path}: status ${answer.status}`;
  return new ApiError(answer.status, name, detail, found);
}
