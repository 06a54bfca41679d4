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
