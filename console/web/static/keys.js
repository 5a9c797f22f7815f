// The keyboard: the palette, shortcuts and their list; and the buttons that copy. The palette
// shows what the page /find finds.
"use strict";
(() => {
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // browsers have no clipboard for pages that come over plain HTTP
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "hidden";
      (document.querySelector("dialog[open]") ?? document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  document.addEventListener("click", async (e) => {
    const b = e.target.closest?.("button.copy");
    if (!b) return;
    await copy(b.dataset.copy);
    b.focus();
    b.classList.add("copied");
    b.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      b.classList.remove("copied");
      b.setAttribute("aria-label", `Copy ${b.dataset.copy}`);
    }, 1500);
  });

  const make = (tag, set = {}, ...inner) => {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(set)) e.setAttribute(name, value);
    e.append(...inner);
    return e;
  };
  const dialog = (label, ...inner) => {
    const d = make("dialog", { "aria-label": label, class: "palette" }, ...inner);
    d.addEventListener("close", () => d.remove());
    d.addEventListener("click", (e) => { if (e.target === d) d.close(); });
    document.body.append(d);
    d.showModal();
    return d;
  };

  // The palette.
  const palette = () => {
    if (document.querySelector("dialog[open]")) return;
    const input = make("input", { type: "search", role: "combobox", "aria-label": "Find", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", maxlength: "63", placeholder: "A page, tag, room, command or ID" });
    const list = make("ul", { id: "palette-list", role: "listbox", "aria-label": "Found" }), says = make("p", { role: "status", class: "dim" });
    const d = dialog("Find", input, list, says);
    let at = 0, asking = null, asked = null;
    const options = () => [...list.children];
    const choose = (next) => {
      const all = options();
      at = Math.max(0, Math.min(next, all.length - 1));
      all.forEach((o, i) => o.setAttribute("aria-selected", i === at));
      input.setAttribute("aria-activedescendant", all[at]?.id ?? "");
      all[at]?.scrollIntoView({ block: "nearest" });
    };
    const go = async () => {
      const o = options()[at];
      if (!o) return;
      if (o.dataset.link) location.href = o.dataset.link;
      else {
        await copy(o.dataset.copy);
        input.focus();
        says.textContent = `Copied: ${o.dataset.copy}`;
      }
    };
    const ask = async () => {
      asking?.abort();
      asking = new AbortController();
      const wanted = input.value;
      try {
        const answer = await fetch(`/find?search=${encodeURIComponent(wanted)}`, { signal: asking.signal });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const found = [...page.querySelectorAll("#found > li")];
        list.replaceChildren(...found.map((li, i) => {
          const link = li.querySelector("a")?.getAttribute("href"), command = li.querySelector("[data-copy]")?.dataset.copy;
          const kind = make("span", { class: "dim" }, li.dataset.kind), text = li.textContent.replace(li.dataset.kind, "").trim();
          const o = make("li", { role: "option", id: `palette-${i}` }, kind, ` ${text}`);
          if (link) o.dataset.link = link;
          else o.dataset.copy = command;
          return o;
        }));
        says.textContent = found.length ? "" : answer.ok ? `Nothing is called “${wanted}”.` : "The console cannot search now.";
        choose(0);
      } catch (e) {
        if (e.name !== "AbortError") says.textContent = "No answer from this console.";
      }
    };
    input.addEventListener("input", () => { asked = ask(); });
    input.addEventListener("keydown", (e) => {
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8 }[e.key];
      if (to !== undefined) choose(to);
      else if (e.key === "Escape") d.close(); // a browser would only clear the field
      else if (e.key === "Enter") asked.then(go); // of what was typed, and not of what was there before
      else return;
      e.preventDefault();
    });
    list.addEventListener("click", (e) => {
      choose(options().indexOf(e.target.closest("li")));
      go();
    });
    d.addEventListener("close", () => asking?.abort());
    input.focus();
    asked = ask();
  };

  // Shortcuts. Those of a single key can be turned off: speech input would press them.
  const pages = { o: "Overview", h: "History", c: "Capacity", t: "Tags", m: "Migrations", i: "Instances", w: "Workers", d: "Decode", a: "Audit" };
  const single = () => localStorage.getItem("single-keys") !== "off";
  const help = () => {
    if (document.querySelector("dialog[open]")) return;
    const row = (keys, what) => make("div", {}, make("dt", {}, ...keys.flatMap((k, i) => [i ? " " : "", make("kbd", {}, k)])), make("dd", {}, what));
    const box = make("input", { type: "checkbox", id: "single-keys" }), close = make("button", { type: "button" }, "Close");
    box.checked = single();
    box.addEventListener("change", () => localStorage.setItem("single-keys", box.checked ? "on" : "off"));
    const d = dialog("Shortcuts", make("h2", {}, "Shortcuts"), make("dl", { class: "shortcuts" },
      row(["Ctrl K"], "Find a page, tag, room or command"), row(["/"], "Search in this page, or find"),
      ...Object.entries(pages).map(([key, page]) => row(["g", key], page)), row(["n"], "New tag"), row(["?"], "This list"), row(["Esc"], "Close")),
    make("label", { class: "check", for: "single-keys" }, box, make("span", {}, "Shortcuts without Ctrl")), make("p", { class: "buttons" }, close));
    close.addEventListener("click", () => d.close());
    close.focus();
  };
  let begun = 0; // when g was pressed
  document.addEventListener("keydown", (e) => {
    if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === "k") {
      e.preventDefault();
      return palette();
    }
    const typing = e.target.closest?.("input:not([type=checkbox]), select, textarea, dialog");
    if (e.ctrlKey || e.metaKey || e.altKey || typing || e.defaultPrevented || !single()) return;
    const second = performance.now() - begun < 1500;
    begun = 0;
    const link = (label) => [...document.querySelectorAll(".top nav a")].find((a) => a.textContent === label);
    if (second && pages[e.key]) link(pages[e.key])?.click();
    else if (e.key === "g") begun = performance.now();
    else if (e.key === "?") help();
    else if (e.key === "n") location.href = "/tags?do=new#new";
    else if (e.key === "/") {
      const field = document.querySelector("main input[type=search]");
      if (field) field.focus();
      else palette();
    } else return;
    e.preventDefault();
  });
  document.addEventListener("click", (e) => {
    const a = e.target.closest?.("[data-palette], [data-help]");
    if (!a || e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    if (a.hasAttribute("data-help")) help();
    else palette();
  });
})();
