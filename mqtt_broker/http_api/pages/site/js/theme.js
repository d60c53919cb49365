// The colours that were chosen, set before the page is drawn: a classic script, so that it runs at once.
"use strict";
try {
  const theme = localStorage.getItem("fleetmq-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the system's colours are used.
}
