"use strict";
// Before the first paint: the colours that the person chose, else those of the system.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
