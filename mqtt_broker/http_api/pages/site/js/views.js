// The views of the page: where each stands in the navigation, and the module that makes it.

/** { name, label, keys, load }: `g` and the key open the view. */
export const GROUPS = [
  ["", [
    { name: "overview", label: "Overview", key: "o", load: () => import("./views/overview.js") },
  ]],
  ["Traffic", [
    { name: "clients", label: "Clients", key: "c", load: () => import("./views/clients.js") },
    { name: "subscriptions", label: "Subscriptions", key: "s", load: () => import("./views/subscriptions.js") },
    { name: "retained", label: "Retained", key: "r", load: () => import("./views/retained.js") },
    { name: "topics", label: "Topics", key: "t", load: () => import("./views/topics.js") },
    { name: "streams", label: "Streams", key: "m", load: () => import("./views/streams.js") },
    { name: "try", label: "Test client", key: "p", load: () => import("./views/try.js") },
  ]],
  ["Find out", [
    { name: "why", label: "Why", key: "w", load: () => import("./views/why.js") },
    { name: "slow", label: "Slow subscribers", key: "l", load: () => import("./views/slow.js") },
    { name: "events", label: "Events", key: "e", load: () => import("./views/events.js") },
    { name: "traces", label: "Traces", key: "x", load: () => import("./views/traces.js") },
    { name: "logs", label: "Logs", key: "g", load: () => import("./views/logs.js") },
  ]],
  ["Access", [
    { name: "access", label: "Users and rules", key: "u", load: () => import("./views/access.js") },
    { name: "bans", label: "Bans", key: "b", load: () => import("./views/bans.js") },
  ]],
  ["Broker", [
    { name: "health", label: "Health", key: "h", load: () => import("./views/health.js") },
    { name: "listeners", label: "Listeners", key: "n", load: () => import("./views/listeners.js") },
    { name: "configuration", label: "Configuration", key: "f", load: () => import("./views/configuration.js") },
    { name: "backups", label: "Backups", key: "k", load: () => import("./views/backups.js") },
  ]],
];

/** All views by name. */
export const VIEWS = new Map(GROUPS.flatMap(([, views]) => views).map((view) => [view.name, view]));
