// The scripts of all pages: the mark that says whether a page is live, notices, the values in
// charts, and the planner's edges, which can be dragged. Everything else is HTML and htmx.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  // A busy browser may give what is wrong in a form the focus, and not scroll to it.
  addEventListener("load", () => document.querySelector("[autofocus]")?.scrollIntoView({ block: "center" }));

  // Live or not. A tick comes from the console every 2 s, with the time of the page's data. A
  // page without a stream asks whether the console answers.
  const patience = 5000, pollEvery = 2000; // ms
  const link = document.getElementById("link");
  if (!link) return; // a page that does not exist
  const still = link.classList.contains("still");
  let state = null, trouble = "", asOf = "", refused = false, heard = performance.now();
  const stood = () => (asOf ? `This is how it stood at ${asOf}` : "Nothing was read yet");
  const say = (next, text) => {
    const words = link.firstElementChild;
    if (next === state && words.textContent === text) return;
    const back = state === "away" && next === "live";
    state = link.className = next;
    words.textContent = text;
    const dead = next === "away";
    root.classList.toggle("old", dead || next === "trouble");
    // A form of a page without a console would lead to the browser's own error page.
    for (const b of document.querySelectorAll(dead ? "main button:enabled" : "main button[data-off]")) {
      b.disabled = dead;
      b.toggleAttribute("data-off", dead);
    }
    // The planner plans the changes that the user typed while the console was away.
    const form = document.getElementById("planform");
    if (back && form && [...form.elements].some((i) => i.value !== i.defaultValue || i.checked !== i.defaultChecked)) form.dispatchEvent(new Event("change", { bubbles: true }));
  };
  // The number of problems, in the title, the icon and the menu.
  const icon = document.querySelector("link[rel=icon]"), title = document.title.replace(/^\(\d+\) /, ""), menu = document.getElementById("problem-count");
  const count = (n) => {
    document.title = n ? `(${n}) ${title}` : title;
    icon.href = n ? icon.dataset.bad : icon.dataset.good;
    if (n) menu.dataset.problems = n;
    else delete menu.dataset.problems;
  };
  const failed = () => document.querySelector("#live[data-failed]");
  const away = () => say("away", still ? "No answer from this console. The page goes on by itself." : `No answer from this console. ${stood()}; the page goes on by itself.`);
  const answers = () => {
    [heard, refused] = [performance.now(), false];
    if (still) say("still", "");
    else if (!trouble && !failed()) say("live", "Live");
    else say("trouble", failed() ? "Trying again" : `${trouble} — ${stood()[0].toLowerCase()}${stood().slice(1)}.`);
  };
  setInterval(() => { if (!document.hidden && !refused && performance.now() - heard > patience) away(); }, 500);
  document.addEventListener("click", (e) => {
    const to = e.target.closest?.("a[href]");
    if (state === "away" && to && !e.ctrlKey && !e.metaKey && !e.shiftKey) e.preventDefault();
  }, true);
  if (still) {
    const ask = () => {
      if (document.hidden) return;
      fetch(link.dataset.ask, { cache: "no-store", signal: AbortSignal.timeout(patience) }).then((r) => { answers(); return r.text(); }).then((n) => { if (/^\d+$/.test(n)) count(Number(n)); }, () => {});
    };
    answers();
    setInterval(ask, pollEvery);
    document.addEventListener("visibilitychange", () => { heard = performance.now(); ask(); });
  } else say("", "Connecting");
  document.addEventListener("htmx:sse:after:connection", answers);
  document.addEventListener("htmx:sse:before:connection", (e) => { if (e.detail.connection.attempt > 0) away(); });
  document.addEventListener("htmx:sse:error", (e) => {
    if (!(refused = e.detail.status > 0)) return away();
    say("trouble", `This console answers, but does not keep this page up to date now (status ${e.detail.status}). ${stood()}; reload it to see changes.`);
  });
  // The console sends all lines of the live part, and then those that changed, each with its number.
  document.addEventListener("htmx:config:request", (e) => { e.detail.ctx.request.headers["March-Lines"] = "1"; });
  let lines = [];
  document.addEventListener("htmx:sse:before:message", (e) => {
    const message = e.detail.message, sent = message.data.split("\n");
    if (message.event === "changed") {
      for (const line of sent) lines[parseInt(line, 10)] = line.slice(line.indexOf(" ") + 1);
      [message.event, message.data] = ["", lines.join("\n")];
    } else if (message.event) return;
    else lines = sent;
    if (failed()) location.replace(failed().dataset.failed);
    trouble = "";
    answers();
  });
  document.addEventListener("tick", (e) => {
    const tick = JSON.parse(e.detail.data);
    asOf = tick.as_of || asOf;
    count(tick.problems);
    answers();
  });
  document.addEventListener("trouble", (e) => {
    trouble = e.detail.data;
    answers();
  });
  document.addEventListener("htmx:error", (e) => { if (e.target.id === "live") away(); });
  // A console that cannot plan now, as it has just begun, say, is asked again; the form stays (hx-status).
  document.addEventListener("htmx:response:error", (e) => {
    if (e.target.id === "planform" && e.detail.ctx.response.raw.status >= 500) setTimeout(() => document.getElementById("planform")?.dispatchEvent(new Event("change", { bubbles: true })), 1000);
  });

  // A notice of a change is for once. Numbers are copied without separators; times tell the
  // local time.
  const here = new URL(location.href);
  if (here.searchParams.has("done")) {
    here.searchParams.delete("done");
    history.replaceState(history.state, "", here);
  }
  document.addEventListener("copy", (e) => {
    const field = e.target.closest?.("input"), text = field ? field.value.slice(field.selectionStart, field.selectionEnd) : String(getSelection());
    const plain = text.replace(/(?<![\d,.])\d{1,3}(,\d{3})+(?![\d,])/g, (n) => n.replaceAll(",", ""));
    if (plain === text) return;
    e.clipboardData.setData("text/plain", plain);
    e.preventDefault();
  });
  document.addEventListener("mouseover", (e) => {
    const time = e.target.closest?.("time[datetime]");
    if (time) time.title = `${new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" })} (local time)`;
  });

  const clamp = (v, least, most) => (v < least ? least : v > most ? most : v);

  // A chart tells the values of a point: of that under the pointer, and with the focus of that
  // which the arrow keys choose. Updates keep both.
  let chosen = null, pointed = null; // the chart's id, and the point, counted from the latest
  const tell = (slot) => {
    const plot = slot.closest(".plot"), slots = [...plot.querySelectorAll(".slot")], text = slot.textContent;
    for (const s of slots) s.classList.toggle("at", s === slot);
    plot.setAttribute("aria-valuenow", slots.indexOf(slot));
    plot.setAttribute("aria-valuetext", text);
    plot.parentElement.querySelector(".readout").textContent = text.replaceAll("\n", " · ");
  };
  const choose = (plot, to) => {
    const slots = plot.querySelectorAll(".slot");
    chosen = { id: plot.id, back: clamp(to, 0, slots.length - 1) };
    tell(slots[slots.length - 1 - chosen.back]);
  };
  document.addEventListener("mouseover", (e) => {
    const slot = e.target.closest?.(".slot"), plot = slot?.closest(".plot");
    pointed = plot && { id: plot.id, back: [...plot.querySelectorAll(".slot")].reverse().indexOf(slot) };
    if (slot) tell(slot);
  });
  document.addEventListener("focusin", (e) => { if (e.target.matches?.(".plot") && chosen?.id !== e.target.id) choose(e.target, 0); });
  document.addEventListener("keydown", (e) => {
    if (!e.target.matches?.(".plot") || chosen?.id !== e.target.id) return;
    const to = { ArrowLeft: chosen.back + 1, ArrowRight: chosen.back - 1, PageUp: chosen.back + 10, PageDown: chosen.back - 10, Home: Infinity, End: 0 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    choose(e.target, to);
  });
  document.addEventListener("htmx:sse:after:message", () => {
    for (const point of [chosen, pointed]) {
      const slots = [...(point && document.getElementById(point.id)?.querySelectorAll(".slot") || [])];
      if (slots.length) tell(slots[clamp(slots.length - 1 - point.back, 0, slots.length - 1)]);
    }
  });

  // An answer to what the planner's form held before is dropped: what was typed
  // or dragged since stays, and is asked for next.
  const sorted = (query) => { query.delete("scale"); query.sort(); return String(query); };
  document.addEventListener("htmx:after:request", (e) => {
    const form = e.target;
    if (form.id !== "planform") return;
    const asked = new URL(e.detail.ctx.request.action, location.href).searchParams;
    if (sorted(asked) !== sorted(new URLSearchParams(new FormData(form)))) e.preventDefault();
  });

  // The planner's edges. Residues have up to 63 bits: BigInt.
  const number = (text) => BigInt(String(text ?? "").replace(/[,_\s]/g, "") || 0);
  const grouped = (v) => String(v).replace(/\B(?=(\d{3})+$)/g, ",");
  const field = (room, name) => [...document.querySelectorAll(`#planform input[name=${name}]`)].find((i) => i.dataset.room === room);
  const boundary = () => { try { return number(document.getElementById("boundary").value); } catch { return 0n; } };
  const percent = (v, whole) => `${Number(v * 1000000n / whole) / 10000}%`;

  const put = (handle, at) => {
    const { below, above } = handle.dataset, whole = boundary();
    const value = clamp(at, number(handle.getAttribute("aria-valuemin")), number(handle.getAttribute("aria-valuemax")));
    if (whole < 1n || String(value) === handle.getAttribute("aria-valuenow")) return;
    handle.setAttribute("aria-valuenow", value);
    handle.setAttribute("x", percent(value, whole));
    handle.querySelector(".at").textContent = grouped(value);
    if (below) field(below, "upper").value = grouped(value);
    if (above) field(above, "lower").value = grouped(value);
    for (const room of [below, above]) {
      const drawn = [...handle.parentElement.querySelectorAll(".stretch")].find((s) => s.dataset.room === room);
      if (!room || !drawn) continue;
      const lower = number(field(room, "lower").value), upper = number(field(room, "upper").value);
      drawn.setAttribute("x", percent(lower, whole));
      drawn.setAttribute("width", percent(upper - lower, whole));
    }
  };
  const changed = () => document.getElementById("planform").dispatchEvent(new Event("change", { bubbles: true }));

  // Sizes that people like: a thousandth of the boundary, rounded down to 1, 2 or
  // 5 times a power of ten.
  const grain = () => {
    let g = 1n;
    const want = boundary() / 400n;
    for (let k = 0; g * (k % 3 === 1 ? 25n : 20n) / 10n <= want; k++) g = k % 3 === 1 ? g * 25n / 10n : g * 2n;
    return g;
  };

  let held = null;
  document.addEventListener("pointerdown", (e) => {
    const handle = e.target.closest?.(".handle");
    if (!handle || e.button !== 0) return;
    held = { handle, id: e.pointerId, box: handle.parentElement.getBoundingClientRect(), moved: false };
    handle.focus();
    e.preventDefault();
  });
  document.addEventListener("pointermove", (e) => {
    if (!held || e.pointerId !== held.id) return;
    const share = clamp((e.clientX - held.box.left) / held.box.width, 0, 1), g = grain();
    put(held.handle, (boundary() * BigInt(Math.round(share * 1e6)) / 1000000n + g / 2n) / g * g);
    held.moved = true;
  });
  const drop = () => {
    if (held?.moved) changed();
    held = null;
  };
  document.addEventListener("pointerup", drop);
  document.addEventListener("pointercancel", drop);
  document.addEventListener("keydown", (e) => {
    const handle = e.target.closest?.(".handle");
    if (!handle) return;
    const now = number(handle.getAttribute("aria-valuenow")), page = boundary() / 20n || 1n, g = grain();
    const to = {
      ArrowLeft: now - g, ArrowDown: now - g, ArrowRight: now + g, ArrowUp: now + g, PageDown: now - page, PageUp: now + page,
      Home: number(handle.getAttribute("aria-valuemin")), End: number(handle.getAttribute("aria-valuemax")),
    }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    put(handle, to);
    changed();
  });
})();
