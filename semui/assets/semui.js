"use strict";
// The page has one stream of the view that it shows while it is visible, and where there can
// be none it asks every interval; the server shares one look at the store among all who look.
// Ids are strangers' bytes: all text is set as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const search = new URLSearchParams(location.search), key = search.get("id");
  const view = key ? "id" : search.get("view") === "store" ? "store" : "ids";
  const number = new Intl.NumberFormat("en");
  const n = (x) => (x === null || x === undefined ? "–" : number.format(x));
  let timer = 0, paused = false, interval = 2000, failures = 0, shown = null, asked = null, stream = null, status = "";

  const set = (e, text) => { if (e.textContent !== text) e.textContent = text; };
  const say = (text, bad) => { // screen readers hear changes of state only
    if (text === status) return;
    status = text;
    set($("status"), text);
    $("status").classList.toggle("bad", bad);
  };
  const span = (ms) => ms === null ? "–" : ms < 0 ? "now" : ms < 1000 ? ms + " ms" : ms < 120000 ? (ms / 1000).toFixed(1) + " s"
    : ms < 7200000 ? Math.round(ms / 60000) + " min" : Math.round(ms / 3600000) + " h";
  const base64 = (text) => {
    let bytes = "";
    for (const b of new TextEncoder().encode(text)) bytes += String.fromCharCode(b);
    return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  };

  const mark = (e, s) => {
    set(e, s.health);
    e.className = "health " + s.health.toLowerCase();
  };

  const NS = "http://www.w3.org/2000/svg";
  const draw = (box, history, w, h, limits) => {
    let svg = box.firstChild;
    if (!svg) {
      svg = document.createElementNS(NS, "svg");
      svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
      svg.setAttribute("width", w);
      svg.setAttribute("height", h);
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("aria-hidden", "true"); // the numbers beside it say how it stands
      for (const c of ["limit", "line", "held"]) {
        const p = document.createElementNS(NS, "polyline");
        p.setAttribute("class", c);
        svg.append(p);
      }
      box.append(svg);
    }
    let top = 1;
    for (const p of history) top = Math.max(top, p[0], p[2], limits ? p[1] : 0);
    const step = w / Math.max(history.length - 1, 1);
    const line = (i) => history.length < 2 ? "" : history.map((p, x) => (x * step).toFixed(1) + "," + (h - 1 - (p[i] / top) * (h - 2)).toFixed(1)).join(" ");
    svg.children[0].setAttribute("points", limits ? line(1) : "");
    svg.children[1].setAttribute("points", history.some((p) => p[2] > 0) ? line(2) : "");
    svg.children[2].setAttribute("points", line(0));
  };

  const cells = (tr, classes) => classes.map((c) => {
    const td = tr.insertCell();
    td.className = c;
    return td;
  });
  const list = (box, items, fill) => { // as many children as items, each filled
    items.forEach((item, i) => fill(box.children[i] || box.appendChild(document.createElement("li")), item));
    while (box.children.length > items.length) box.lastChild.remove();
  };
  const rows = new Map();
  const overview = (s) => {
    set($("held"), n(s.held));
    set($("waiting"), n(s.waiting));
    set($("oldest"), s.head_ms ? span(s.head_ms) : "–");
    set($("ids"), n(s.ids));
    $("byhand").hidden = s.set.length === 0;
    list($("set"), s.set, (li, r) => {
      const a = li.firstChild || li.appendChild(document.createElement("a")), b = a.firstChild || a.appendChild(document.createElement("bdi"));
      a.href = "?id=" + r.key;
      set(b, r.id);
      const rest = li.childNodes[1] || li.appendChild(document.createElement("span"));
      set(rest, r.limit === 0 ? " is paused" : ` has the limit ${n(r.limit)}`);
    });
    set($("walk"), s.whole < 0 ? `first walk: ${n(s.seen)} ids so far` : `${n(s.whole)} in the last walk, ${n(s.seen)} in this`);
    const body = $("rows");
    // Under the pointer or the focus nothing moves: a click must hit what it was meant for.
    const still = body.matches(":hover") || body.contains(document.activeElement);
    const keep = new Set();
    s.rows.forEach((r, i) => {
      keep.add(r.key);
      let row = rows.get(r.key);
      if (!row) {
        const tr = document.createElement("tr");
        const c = cells(tr, ["", "", "n", "n", "n", "n wide", "n wide", "wide"]);
        const a = document.createElement("a"), b = document.createElement("bdi"), word = document.createElement("span");
        a.href = "?id=" + r.key;
        a.append(b);
        set(b, r.id);
        c[0].append(a);
        c[1].append(word);
        row = { tr, c, word };
        rows.set(r.key, row);
        body.append(tr);
      }
      mark(row.word, r);
      set(row.c[2], n(r.held));
      set(row.c[3], n(r.limit) + (r.limit_set ? " set" : ""));
      set(row.c[4], n(r.waiting));
      set(row.c[5], r.head_ms ? span(r.head_ms) : "");
      set(row.c[6], r.refused ? n(r.refused) : "");
      draw(row.c[7], r.history, 120, 22, r.limit !== null);
      if (!still && body.children[i] !== row.tr) body.insertBefore(row.tr, body.children[i] || null);
    });
    for (const [k, row] of rows) {
      if (!keep.has(k) && !still) { row.tr.remove(); rows.delete(k); }
    }
    set($("note"), s.rows.length === 0 ? "No id has been seen held yet: as soon as something is acquired, it shows here." : s.more ? `and ${n(s.more)} more that hurt less: find them by name` : "");
  };

  let version = ""; // of the limit that is set
  const one = (s) => {
    shown = s.now;
    $("operate").hidden = !s.operate || !s.now;
    if (!s.now) { set($("trouble"), s.trouble); return; }
    set($("name"), s.now.id);
    document.title = s.now.id + " – gotsem";
    set($("big"), n(s.now.held) + " of " + (s.now.limit === null ? "?" : n(s.now.limit)));
    mark($("word"), s.now);
    $("fill").style.width = s.now.limit ? Math.min(100, 100 * s.now.held / s.now.limit) + "%" : "0";
    version = s.set ? s.set.version : "";
    set($("origin"), s.set ? `The limit was set by hand ${span(s.set.age_ms)} ago, for all programs${s.set.left_ms === null ? "" : `; it ends by itself in ${span(s.set.left_ms)}`}.${s.set.by ? " By " + s.set.by : ""}`
      : s.now.limit_set ? "The limit was set by hand, for all programs." : s.now.limit === null ? "No limit was set by hand: each program's own counts, which is not known here." : "No limit was set by hand: each program's own counts; this is the one of the program that shows the page.");
    draw($("chart"), s.now.history, 600, 90, s.now.limit !== null);
    const [critical, normal, batch, sheddable] = s.now.line;
    set($("line"), s.now.waiting === 0 ? "Nobody waits." : `${n(s.now.waiting)} wait: ${n(critical)} critical, ${n(normal)} default, ${n(batch)} batch, ${n(sheddable)} sheddable.`);
    $("waiters-table").hidden = s.waiters.length === 0;
    s.waiters.forEach((w, i) => {
      const tr = $("waiters").rows[i] || $("waiters").insertRow();
      const c = tr.cells.length ? [...tr.cells] : cells(tr, ["", "n", "n", ""]);
      set(c[0], w.owner || "–");
      set(c[1], span(w.waited_ms));
      set(c[2], n(w.weight));
      set(c[3], w.class);
    });
    while ($("waiters").rows.length > s.waiters.length) $("waiters").deleteRow(-1);
    const why = Object.entries(s.now.refused_by).map(([k, v]) => `${n(v)} ${k.replaceAll("_", " ")}`).join(", ");
    set($("refusals"), why ? `Refused by the program that shows this page, within the last two minutes: ${why}.` : "");
    set($("memory"), s.grace_ms ? `The server lost its memory: nothing is granted for another ${span(s.grace_ms)}, so that holders can come forward.`
      : s.losses ? `The server that keeps this id lost its memory ${n(s.losses)} ${s.losses === 1 ? "time" : "times"}, the last ${span(s.loss_ms)} ago.` : "");
    holders(s.holders, s.next, s.operate);
    set($("trouble"), s.trouble || (s.holders.length ? "" : "Nobody holds a slot."));
  };

  let first = [], further = [], next = "", operate = false; // pages: the one that is kept up to date, and those that were asked for
  const holders = (page, after, may) => {
    first = page;
    operate = may;
    if (further.length === 0) next = after;
    fillHolders();
  };
  const fillHolders = () => {
    const body = $("holders"), all = [...first];
    const seen = new Set(first.map((h) => h.mark));
    for (const h of further) if (!seen.has(h.mark)) { seen.add(h.mark); all.push(h); } // who renewed is in the first page
    all.forEach((h, i) => {
      const tr = body.rows[i] || body.insertRow();
      const c = tr.cells.length ? [...tr.cells] : cells(tr, ["", "n", "n", "n", "wide", "act"]);
      set(c[0], h.owner || "TryAcquire: not renewed, not told when revoked");
      set(c[1], span(h.since_ms));
      set(c[2], span(h.left_ms));
      set(c[3], n(h.weight));
      set(c[4], h.mark);
      let button = c[5].firstChild;
      if (operate && !button) {
        button = document.createElement("button");
        button.type = "button";
        button.textContent = "Revoke";
        c[5].append(button);
      } else if (!operate && button) { button.remove(); button = null; }
      if (button) { button.setAttribute("aria-label", `Revoke ${h.mark}`); tr.holder = h; }
    });
    while (body.rows.length > all.length) body.deleteRow(-1);
    $("more").hidden = !next;
  };
  $("more").addEventListener("click", async () => {
    try {
      const answer = await fetch(`api/v1/holders?id=${encodeURIComponent(key)}&after=${encodeURIComponent(next)}`);
      if (!answer.ok) throw new Error(await answer.text());
      const page = await answer.json();
      further = further.concat(page.holders);
      next = page.next;
      fillHolders();
    } catch (e) {
      set($("trouble"), "The further holders could not be listed: " + e.message);
    }
  });

  const store = (s) => {
    list($("processes"), s.processes, (li, p) => set(li, p.owner + (p.left_ms === null ? "" : `, good for another ${span(p.left_ms)}`)));
    list($("findings"), s.findings, (li, f) => {
      li.className = f.ok ? "ok" : "amiss";
      set(li, `${f.ok ? "Well" : "Amiss"}: ${f.what}: ${f.text}`);
    });
    const box = $("here"), all = Object.entries(s.here).sort(([a], [b]) => a < b ? -1 : 1);
    all.forEach(([k, v], i) => {
      let div = box.children[i];
      if (!div) {
        div = document.createElement("div");
        div.append(document.createElement("dt"), document.createElement("dd"));
        box.append(div);
      }
      set(div.children[0], k.replaceAll("_", " "));
      set(div.children[1], n(v));
    });
    set($("store-trouble"), s.trouble);
  };

  const show = (s) => {
    interval = Math.max(s.interval_ms, 250);
    if (s.up) say("The store answers", false);
    else say(`The store does not answer: ${s.error}. What is shown is the last that is known.`, true);
    ({ id: one, store, ids: overview })[view](s);
  };

  const query = () => key ? "id=" + encodeURIComponent(key) : "q=" + encodeURIComponent($("q").value);
  const stop = () => {
    clearTimeout(timer);
    if (asked) asked.abort();
    if (stream) stream.close();
    asked = stream = null;
  };

  // start opens the stream. Whatever ends it, asking tells why; then there is another try.
  const start = () => {
    stop();
    if (paused || document.hidden) return;
    const mine = stream = new EventSource(`api/v1/events?view=${view}&${query()}`);
    mine.onmessage = (e) => { failures = 0; show(JSON.parse(e.data)); watch(mine); };
    mine.onerror = () => { if (mine === stream) { stop(); ask(); } };
    watch(mine);
  };
  const watch = (mine) => { // a proxy may hold a stream back
    clearTimeout(timer);
    timer = setTimeout(() => { if (mine === stream) { stop(); ask(); } }, Math.max(3 * interval, 5000));
  };

  const ask = async () => {
    stop();
    if (paused || document.hidden) return;
    const mine = asked = new AbortController();
    try {
      const answer = await fetch(`api/v1/${view}?${query()}`, { signal: mine.signal });
      if (answer.status === 401 || answer.status === 403) { say("You may not see this any more: reload the page.", true); return; }
      if (!answer.ok) throw new Error(await answer.text());
      show(await answer.json());
      failures = 0;
    } catch (e) {
      if (mine !== asked) return;
      failures++;
      say("The page's server does not answer: asking again.", true);
    }
    if (mine !== asked) return;
    polls++;
    timer = setTimeout(failures || polls % 10 ? ask : start, Math.min(interval * 2 ** failures, 60000));
  };
  let polls = 0; // every tenth time the stream is tried again

  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    if (paused) { stop(); say("Updates are paused", false); } else start();
  });
  document.addEventListener("visibilitychange", start);
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && view === "ids" && !e.ctrlKey && !e.metaKey && !(document.activeElement instanceof HTMLInputElement)) { e.preventDefault(); $("q").focus(); }
  });
  let typing = 0;
  $("q").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(start, 150); });
  $("search").addEventListener("submit", (e) => {
    e.preventDefault();
    if ($("q").value) location.search = "?id=" + base64($("q").value);
  });

  let seen = ""; // the version that was set when the dialog was opened: the store compares
  const open = (limit, minutes) => {
    seen = version;
    $("limit").value = limit;
    $("ends").value = minutes;
    set($("refused"), "");
    effect();
    $("dialog").showModal();
  };
  $("change").addEventListener("click", () => open(shown.limit_set ? shown.limit : "", ""));
  $("halt").addEventListener("click", () => open("0", "60"));
  const effect = () => {
    const v = $("limit").value, held = shown.held;
    set($("effect"), v === "" ? `${n(held)} held. Each program's own limit will count.`
      : v === "0" ? `${n(held)} held. Nobody is let in from now on; nobody is turned out.`
      : held > v ? `${n(held)} held, new limit ${n(+v)}: ${n(held - v)} must end first. Nobody is turned out.` : `${n(held)} held, new limit ${n(+v)}.`);
  };
  $("limit").addEventListener("input", effect);
  $("cancel").addEventListener("click", () => $("dialog").close());
  const post = async (what, body, dialog, refused) => {
    try {
      const answer = await fetch("api/v1/" + what, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      if (answer.ok) { dialog.close(); start(); return; }
      const text = await answer.text();
      let why = text;
      try { why = JSON.parse(text).error; } catch { /* plain text */ }
      set(refused, why);
    } catch {
      set(refused, "No answer: it is not known whether anything was changed.");
    }
  };
  $("form").addEventListener("submit", (e) => {
    e.preventDefault();
    const v = $("limit").value;
    post("limit", { key, limit: v === "" ? null : Number(v), for_s: v === "" ? 0 : Math.round(60 * Number($("ends").value)), version: seen, reason: $("reason").value }, $("dialog"), $("refused"));
  });

  let doomed = null; // the holder whose slot the dialog is about: what is shown may move on
  $("holders").addEventListener("click", (e) => {
    const tr = e.target instanceof HTMLButtonElement && e.target.closest("tr");
    if (!tr) return;
    doomed = tr.holder;
    set($("revoke-who"), doomed.owner || "TryAcquire");
    set($("revoke-mark"), doomed.mark);
    set($("revoke-refused"), "");
    $("revoke").showModal();
  });
  $("revoke-cancel").addEventListener("click", () => $("revoke").close());
  $("revoke-form").addEventListener("submit", (e) => {
    e.preventDefault();
    post("revoke", { key, handle: doomed.handle, reason: $("revoke-reason").value }, $("revoke"), $("revoke-refused"));
  });

  $({ id: "one", store: "store", ids: "overview" }[view]).hidden = false;
  const here = view === "store" ? $("to-store") : view === "ids" ? $("to-limits") : null;
  if (here) here.setAttribute("aria-current", "page");
  start();
})();
