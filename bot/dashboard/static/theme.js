"use strict";
// Before the first paint: the colours and the time zone that the person chose, else those of the system and UTC.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const pad = (value) => String(value).padStart(2, "0");
  window.isLocal = () => localStorage.getItem("zone") === "local";
  // An instant in the form of the pages, in the zone that the person chose.
  window.pageTime = (ms) => {
    const at = new Date(ms), of = window.isLocal() ? "get" : "getUTC";
    const [day, month, year, ...clock] = ["Date", "Month", "FullYear", "Hours", "Minutes", "Seconds"].map((part) => at[of + part]());
    return `${pad(day)} ${months[month]} ${year} ${clock.map(pad).join(":")}`;
  };
})();
