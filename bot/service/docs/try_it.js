"use strict";
// Adds a "Try it" panel to each operation with an example. Requests go to this service only; values stay in this page until it is closed.
(() => {
  const known = {}; // name of a field -> its newest value, for placeholders such as <apiKey>

  const filled = (text) =>
    text.replace(/<(\w+)>/g, (mark, name) => {
      if (!(name in known)) throw new Error(`fill in ${mark} first: an earlier answer has it`);
      return known[name];
    });

  const remember = (value) => {
    if (Array.isArray(value)) value.toReversed().forEach(remember);
    else if (value && typeof value === "object")
      for (const [name, one] of Object.entries(value)) typeof one === "string" ? (known[name] = one) : remember(one);
  };

  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  // The search leaves the operations whose method, path or summary has every word, in the contents and on the page.
  const contents = document.querySelector("#contents");
  const search = make("input", { type: "search", className: "search", placeholder: "Search operations", ariaLabel: "Search operations" });
  const none = make("p", { className: "soft", role: "status" });
  const rows = [...contents.querySelectorAll("li > a[title]")].map((link) => ({
    item: link.parentElement, section: document.getElementById(link.hash.slice(1)), text: `${link.textContent} ${link.title}`.toLowerCase(),
  }));
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { item, section, text } of rows) {
      const isShown = words.every((word) => text.includes(word));
      item.hidden = !isShown;
      if (section) section.hidden = !isShown;
      left += isShown;
    }
    for (const list of contents.querySelectorAll(".group")) list.hidden = !list.nextElementSibling.querySelector("li:not([hidden])");
    none.textContent = words.length ? `${left} of ${rows.length} operations` : "";
  });
  search.addEventListener("keydown", (event) => {
    const first = rows.find(({ item }) => !item.hidden);
    if (event.key === "Enter" && first) location.assign(first.item.firstElementChild.href);
  });
  contents.querySelector(".soft").after(search, none);

  const field = (words, input) => make("label", { className: "field" }, make("span", { textContent: words }), input);

  for (const place of document.querySelectorAll(".try")) {
    const { method, path: start, body: example, credential } = place.dataset;
    const path = make("input", { value: start, spellcheck: false, autocomplete: "off" });
    const body = example === undefined ? null : make("textarea", { value: example, rows: example.split("\n").length, spellcheck: false });
    const key = credential ? make("input", { spellcheck: false, autocomplete: "off", placeholder: `<${credential}>` }) : null;
    const send = make("button", { type: "button", textContent: `Send ${method}` });
    const status = make("p", { className: "soft", role: "status" });
    const answer = make("pre", { hidden: true, tabIndex: 0 }, make("code"));
    if (key) key.addEventListener("focus", () => (key.value ||= known[credential] ?? ""));

    send.addEventListener("click", async () => {
      status.textContent = "Sending";
      answer.hidden = true;
      try {
        const url = new URL(filled(path.value), location.origin);
        if (url.origin !== location.origin) throw new Error(`the path begins with one / of ${location.origin}`);
        const headers = {};
        if (key) headers.Authorization = `Bearer ${key.value || filled(`<${credential}>`)}`;
        if (body) headers["Content-Type"] = "application/json";
        const response = await fetch(url, { method, headers, body: body && filled(body.value), credentials: "omit" });
        const text = await response.text();
        status.textContent = `${response.status} ${response.statusText}`;
        answer.hidden = false;
        answer.firstChild.textContent = text;
        const value = JSON.parse(text);
        answer.firstChild.textContent = JSON.stringify(value, null, 2);
        if (response.ok) remember(value);
      } catch (error) {
        status.textContent = error.message;
      }
    });

    const fields = [field("Path", path), ...(key ? [field(`Bearer ${credential}`, key)] : []), ...(body ? [field("Body", body)] : [])];
    place.append(make("details", {}, make("summary", { textContent: "Try it" }), ...fields, send, status, answer));
  }
})();
