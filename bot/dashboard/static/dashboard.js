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

  // Times are UTC, or of this machine if the person chose so.
  const zone = document.getElementById("zone");
  const showTimes = (place) => {
    for (const one of place.querySelectorAll("time[datetime]")) {
      const text = window.pageTime(Date.parse(one.dateTime));
      one.textContent = one.className === "minute" ? text.slice(0, -3) : text;
      one.toggleAttribute("title", window.isLocal());
      if (window.isLocal()) one.title = one.dateTime;
    }
  };
  const showZone = () => {
    if (zone) zone.textContent = window.isLocal() ? "Local" : "UTC";
    zone?.setAttribute("aria-pressed", String(window.isLocal()));
    for (const one of document.querySelectorAll(".zone")) one.textContent = window.isLocal() ? "the time of this machine, on the clock" : "UTC";
    showTimes(document);
  };
  zone?.addEventListener("click", () => {
    localStorage.setItem("zone", window.isLocal() ? "utc" : "local");
    showZone();
    window.dispatchEvent(new Event("theme"));
  });
  if (window.isLocal()) showZone();

  // Notices of the browser, only after a click, and only while a page is open: each new banner of the page, and a lost connection.
  const notices = document.getElementById("notices");
  const isOn = () => "Notification" in window && Notification.permission === "granted" && localStorage.getItem("notices") === "on";
  const notify = (text) => { if (isOn()) new Notification(document.title, { body: text, tag: "bracketbot" }); };
  const stopNotices = (why) => { localStorage.setItem("notices", "off"); notices.title = why; };
  const showNotices = () => notices?.setAttribute("aria-pressed", String(isOn()));
  if (notices && "Notification" in window && document.body.dataset.stream) {
    notices.hidden = false;
    notices.addEventListener("click", async () => {
      const wanted = !isOn() && await Notification.requestPermission() === "granted";
      stopNotices(Notification.permission === "denied" ? "The browser does not allow notices of this address" : "");
      if (wanted) {
        localStorage.setItem("notices", "on");
        // Some browsers of phones give notices only to installed programs.
        try { notify("Notices are on while this page is open."); } catch { stopNotices("This browser gives no notices to pages"); }
      }
      showNotices();
    });
    showNotices();
  }
  const banners = () => [...document.querySelectorAll("#live-notice .banner")].map((one) => one.textContent.trim()).join(" ");
  // Numbers in a banner change all the time: its age is no news.
  const news = (text) => text.replace(/[0-9][0-9.,: ]*/g, "#");
  let known = banners();
  const tell = () => {
    const now = banners();
    if (news(now) !== news(known)) notify(now || "The daemon runs without a fault again.");
    known = now;
  };

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
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    // The first update repeats what the page came with.
    if (!place || place.innerHTML === fresh.innerHTML) return;
    const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = [...place.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    place.replaceChildren(fresh.content);
    showTimes(place);
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
      tell();
      if (update.moved) return end(update.moved);
      show("The page is up to date with the dashboard", "good");
      root.dataset.updates = String(Number(root.dataset.updates || 0) + 1);
    };
    source.onerror = () => {
      if (connection?.classList.contains("good")) notify("The dashboard does not answer.");
      show(source.readyState === EventSource.CLOSED ? "Not connected: reload the page" : "Connecting again", "bad");
    };
  };
  // A page that nobody sees asks for nothing, unless it is to give notices.
  document.addEventListener("visibilitychange", () => {
    if (isOver) return;
    if (document.hidden) { if (!isOn()) source?.close(); }
    else if (!source || source.readyState === EventSource.CLOSED) open();
  });
  window.addEventListener("pagehide", () => source?.close());
  open();
})();
