"use strict";
// Updates of an open page: the server sends fragments that it has rendered, and the end of the chart.
(() => {
  const root = document.documentElement;
  document.getElementById("theme")?.addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    window.dispatchEvent(new Event("theme"));
  });

  // The dead-man clock counts down in real time; the server sends when it ends.
  const pad = (value) => String(value).padStart(2, "0");
  let ahead = 0; // of this browser's clock before the server's, in ms
  const count = () => {
    for (const clock of document.querySelectorAll(".countdown[data-until]")) {
      const left = Math.floor((Number(clock.dataset.until) - (Date.now() - ahead)) / 1000);
      const hours = Math.floor(left / 3600);
      const text = left < 0 ? "may have acted" : (hours ? `${hours}:${pad(Math.floor(left / 60) % 60)}` : Math.floor(left / 60)) + `:${pad(left % 60)}`;
      if (clock.textContent !== text) clock.textContent = text;
    }
  };
  count();
  setInterval(count, 250);

  const connection = document.getElementById("connection");
  const show = (text, tone) => {
    if (!connection || connection.textContent === text) return;
    connection.textContent = text;
    connection.className = `connection ${tone}`;
  };

  // Replace a fragment; the focus and the scrolled position inside it stay.
  const replace = (name, html) => {
    const place = document.getElementById(`live-${name}`);
    if (!place) return;
    const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = [...place.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    place.innerHTML = html;
    place.querySelectorAll(".scroll").forEach((one, n) => { one.scrollLeft = scrolled[n] || 0; });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  // The page is about something that is gone: it says so, and nothing can be changed from it any more.
  const end = (text) => {
    source.close();
    isOver = true;
    const notice = document.getElementById("live-notice");
    const banner = document.createElement("p");
    banner.className = "banner bad";
    banner.setAttribute("role", "alert");
    banner.textContent = text;
    notice.replaceChildren(banner);
    for (const one of document.querySelectorAll("main a[href^='/control/']")) one.remove();
    show("This page has ended: reload it", "bad");
  };

  let isOver = false;
  const address = document.body.dataset.stream;
  if (!address) return;
  let source;
  const open = () => {
    source = new EventSource(address);
    source.onmessage = (message) => {
      const update = JSON.parse(message.data);
      if (update.now) ahead = Date.now() - update.now;
      for (const [name, html] of Object.entries(update.fragments)) replace(name, html);
      if (update.chart) window.dispatchEvent(new CustomEvent("chart", { detail: update.chart }));
      count();
      if (update.moved) return end(update.moved);
      show("The page is up to date with the dashboard", "good");
      root.dataset.updates = String(Number(root.dataset.updates || 0) + 1);
    };
    source.onerror = () => show(source.readyState === EventSource.CLOSED ? "Not connected: reload the page" : "Connecting again", "bad");
  };
  // A page that nobody sees asks for nothing.
  document.addEventListener("visibilitychange", () => {
    if (isOver) return;
    if (document.hidden) source?.close();
    else if (!source || source.readyState === EventSource.CLOSED) open();
  });
  window.addEventListener("pagehide", () => source?.close());
  open();
})();
