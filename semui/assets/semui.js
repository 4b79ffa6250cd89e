"use strict";
// The page asks every interval while it is visible, and no more often; the server shares
// one look at the store among all who ask. Ids are strangers' bytes: all text is set as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const key = new URLSearchParams(location.search).get("id");
  const number = new Intl.NumberFormat("en");
  const n = (x) => (x === null || x === undefined ? "–" : number.format(x));
  let timer = 0, paused = false, interval = 2000, failures = 0, shown = null, asked = null, status = "";

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

  const health = (s) => {
    if (s.limit_set && s.limit === 0) return "Paused";
    if (s.limit !== null && s.held > s.limit) return "Over";
    if (s.waiting > 0) return "Waiting";
    if (s.limit !== null && s.held >= s.limit) return "Full";
    return s.held > 0 ? "Busy" : "Idle";
  };
  const mark = (e, s) => {
    const word = health(s);
    set(e, word);
    e.className = "health " + word.toLowerCase();
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
  const rows = new Map();
  const overview = (s) => {
    set($("held"), n(s.held));
    set($("waiting"), n(s.waiting));
    set($("ids"), n(s.ids));
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
        const c = cells(tr, ["", "", "n", "n", "n", "wide"]);
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
      draw(row.c[5], r.history, 120, 22, r.limit !== null);
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
    const body = $("holders");
    s.holders.forEach((h, i) => {
      const tr = body.rows[i] || body.insertRow();
      const c = tr.cells.length ? [...tr.cells] : cells(tr, ["", "n", "n", "n", "wide"]);
      set(c[0], h.owner || "TryAcquire: not renewed, not told when revoked");
      set(c[1], span(h.since_ms));
      set(c[2], span(h.left_ms));
      set(c[3], n(h.weight));
      set(c[4], h.mark);
    });
    while (body.rows.length > s.holders.length) body.deleteRow(-1);
    set($("trouble"), s.trouble || (s.more ? `and ${n(s.more)} more` : s.holders.length ? "" : "Nobody holds a slot."));
  };

  const show = (s) => {
    interval = Math.max(s.interval_ms, 250);
    if (s.up) say("The store answers", false);
    else say(`The store does not answer: ${s.error}. What is shown is the last that is known.`, true);
    (key ? one : overview)(s);
  };

  const ask = async () => {
    clearTimeout(timer);
    if (paused || document.hidden) return;
    if (asked) asked.abort();
    const mine = asked = new AbortController();
    try {
      const url = key ? "api/v1/id?id=" + encodeURIComponent(key) : "api/v1/ids?q=" + encodeURIComponent($("q").value);
      const answer = await fetch(url, { signal: mine.signal });
      if (answer.status === 401 || answer.status === 403) { say("You may not see this any more: reload the page.", true); return; }
      if (!answer.ok) throw new Error(await answer.text());
      show(await answer.json());
      failures = 0;
    } catch (e) {
      if (mine !== asked) return;
      failures++;
      say("The page's server does not answer: asking again.", true);
    }
    if (mine === asked) timer = setTimeout(ask, Math.min(interval * 2 ** failures, 60000));
  };

  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    if (paused) { clearTimeout(timer); say("Updates are paused", false); } else ask();
  });
  document.addEventListener("visibilitychange", ask);
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && !key && !e.ctrlKey && !e.metaKey && !(document.activeElement instanceof HTMLInputElement)) { e.preventDefault(); $("q").focus(); }
  });
  $("q").addEventListener("input", ask);
  $("search").addEventListener("submit", (e) => {
    e.preventDefault();
    if ($("q").value) location.search = "?id=" + base64($("q").value);
  });

  let seen = ""; // the version that was set when the dialog was opened: the store compares
  $("change").addEventListener("click", () => {
    seen = version;
    $("limit").value = shown.limit_set ? shown.limit : "";
    $("ends").value = "";
    set($("refused"), "");
    effect();
    $("dialog").showModal();
  });
  const effect = () => {
    const v = $("limit").value, held = shown.held;
    set($("effect"), v === "" ? `${n(held)} held. Each program's own limit will count.`
      : v === "0" ? `${n(held)} held. Nobody is let in from now on; nobody is turned out.`
      : held > v ? `${n(held)} held, new limit ${n(+v)}: ${n(held - v)} must end first. Nobody is turned out.` : `${n(held)} held, new limit ${n(+v)}.`);
  };
  $("limit").addEventListener("input", effect);
  $("cancel").addEventListener("click", () => $("dialog").close());
  $("form").addEventListener("submit", async (e) => {
    e.preventDefault();
    const v = $("limit").value;
    try {
      const answer = await fetch("api/v1/limit", { method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ key, limit: v === "" ? null : Number(v), for_s: v === "" ? 0 : Math.round(60 * Number($("ends").value)), version: seen, reason: $("reason").value }) });
      if (answer.ok) { $("dialog").close(); ask(); return; }
      const text = await answer.text();
      let why = text;
      try { why = JSON.parse(text).error; } catch { /* plain text */ }
      set($("refused"), why);
    } catch {
      set($("refused"), "No answer: it is not known whether the limit was changed.");
    }
  });

  $(key ? "one" : "overview").hidden = false;
  ask();
})();
