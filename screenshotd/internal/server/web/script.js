"use strict";
// One event stream while the page is visible and not paused; if it does not come through,
// the same is asked for now and then. URLs and hosts are strangers' words: all is set as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const set = (e, text) => { if (e.textContent !== text) e.textContent = text; };
  const make = (name, parent, className) => {
    const e = document.createElement(name);
    if (className) e.className = className;
    if (parent) parent.append(e);
    return e;
  };
  const number = new Intl.NumberFormat("en");
  const seconds = (ms) => (Math.floor(ms / 100) / 10).toFixed(1) + " s";
  const span = (ms) => ms < .1 ? "< 0.1 ms" : ms < 10 ? ms.toFixed(1) + " ms" : ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s";

  // Screen readers hear changes of state only, and not each of a crowd.
  let said = "", next = "", quiet = 0;
  const say = (text, bad) => {
    next = text;
    set($("status"), text);
    $("status").classList.toggle("bad", bad);
    const speak = () => { quiet = 0; if (next !== said) { said = next; set($("spoken"), next); quiet = setTimeout(speak, 2000); } };
    if (!quiet) speak();
  };

  let now = null, at = 0; // what was shown last, and when it came
  const mine = new Map(); // numbers of this tab's captures to their pictures

  const slots = () => {
    const list = $("slots"), since = performance.now() - at;
    while (list.children.length > now.boxes.length) list.lastChild.remove();
    now.boxes.forEach((b, i) => {
      let li = list.children[i];
      if (!li) {
        li = make("li", list);
        make("span", li); make("b", li); make("span", li); make("bdi", li);
        set(li.children[0], "Slot " + (i + 1));
      }
      li.classList.toggle("taken", b !== null);
      set(li.children[1], b ? seconds(b.ms + since) : "free");
      set(li.children[2], b ? "No. " + b.no : "");
      set(li.children[3], b ? b.host : "");
    });
  };
  const countdowns = () => {
    const since = performance.now() - at;
    now.refused.forEach((f, i) => {
      const left = f.again_ms === null ? null : Math.max(0, f.again_ms - since);
      const row = $("refused").rows[i];
      if (row) set(row.cells[3], left === null ? "–" : left >= 100 ? seconds(left) : "now");
    });
  };
  const reasons = () => {
    const list = $("reasons"), all = [["let in", now.admitted], ...Object.entries(now.reasons).sort().map(([why, n]) => ["refused: " + why, n])];
    while (list.children.length > all.length) list.lastChild.remove();
    all.forEach(([name, n], i) => {
      const div = list.children[i] || make("div", list);
      if (!div.firstChild) { make("dt", div); make("dd", div); }
      set(div.firstChild, name);
      set(div.lastChild, number.format(n));
    });
  };
  const refused = () => {
    const body = $("refused");
    now.refused.forEach((f, i) => {
      const tr = body.rows[i] || body.insertRow();
      while (tr.cells.length < 4) tr.insertCell().className = tr.cells.length > 2 ? "n" : "";
      set(tr.cells[0], String(f.no));
      set(tr.cells[1], `${f.fleet ? "fleet: " : ""}${f.reason} (${f.status})`);
      set(tr.cells[2], span(f.took_ms));
    });
    while (body.rows.length > now.refused.length) body.deleteRow(-1);
    $("none").hidden = now.refused.length > 0;
    countdowns();
  };
  const codes = { ok: "captured", blocked: "not public: blocked", not_loaded: "does not load", too_large: "too large", timeout: "took too long",
    client_gone: "its client left", page_crashed: "the page crashed", browser_gone: "the browser ended", browser_not_started: "no browser" };
  const figures = new Map(); // by number
  const shots = () => {
    const list = $("shots"), keep = new Set();
    now.ended.forEach((e, i) => {
      keep.add(e.no);
      let li = figures.get(e.no);
      const picture = mine.get(e.no) || (e.picture ? "picture/" + e.no : "");
      if (!li || picture && li.firstChild.tagName !== "IMG") {
        if (li) li.remove();
        li = make("li");
        if (picture) {
          const img = make("img", li);
          img.alt = `Capture no. ${e.no}`;
          img.src = picture;
        } else set(make("div", li, "blank"), e.code === "ok" ? "not shown" : codes[e.code] || e.code);
        make("span", li); make("bdi", li);
        figures.set(e.no, li);
      }
      set(li.children[1], `No. ${e.no}, ${e.code === "ok" ? "" : "failed after "}${span(e.ms)}`);
      set(li.children[2], e.host);
      if (list.children[i] !== li) list.insertBefore(li, list.children[i] || null);
    });
    for (const [no, li] of figures) if (!keep.has(no)) { li.remove(); figures.delete(no); }
    for (const [no, url] of mine) if (!keep.has(no) && mine.size > 12) { URL.revokeObjectURL(url); mine.delete(no); }
    $("empty").hidden = now.ended.length > 0;
  };

  const show = (d) => {
    now = d;
    at = performance.now();
    set($("held"), number.format(d.held + d.more));
    set($("limit"), number.format(d.limit));
    slots();
    $("more").hidden = d.more === 0;
    set($("more"), `and ${number.format(d.more)} more, not drawn`);
    set($("line"), d.line.most === 0 ? "" : d.line.n === 0 ? `The line is empty: up to ${number.format(d.line.most)} may wait, who comes then is refused.`
      : `The line: ${number.format(d.line.n)} of ${number.format(d.line.most)} places taken, the first waits since ${span(d.line.oldest_ms)}.`);
    $("fleet").hidden = !d.fleet;
    if (d.fleet) set($("fleet"), d.fleet.error || `The fleet: ${number.format(d.fleet.running)} of ${number.format(d.fleet.maxConcurrent)} slots taken, ${number.format(d.fleet.queued)} waiting.`);
    reasons();
    refused();
    shots();
    $("flood").hidden = !d.flood;
    if (d.flood) set($("flood-text"), `${number.format(d.flood.of)} captures of a slow sample page within ${span(d.flood.ms)}: twice what the slots can take. They come in by the same door as yours.`);
    set($("sent"), d.overload ? `${d.overload.sent} of ${d.overload.of} sent` : "");
    if (d.trouble) say(`No captures are taken: ${d.trouble}.`, true);
    else if (d.limit > 0 && d.held + d.more >= d.limit) say("Full: one more is refused", false);
    else say("There is room", false);
    tick();
  };

  // Times go on between two events, as long as one is to be seen moving.
  let ticking = 0;
  const tick = () => {
    if (ticking || !now || document.hidden || paused) return;
    const since = performance.now() - at;
    if (!now.boxes.some((b) => b) && !now.refused.some((f) => f.again_ms > since)) return;
    ticking = setTimeout(() => { ticking = 0; slots(); countdowns(); tick(); }, calm.matches ? 1000 : 100);
  };

  let stream = null, poll = 0, silence = 0, paused = false;
  const stop = () => {
    if (stream) stream.close();
    stream = null;
    clearTimeout(poll);
    clearTimeout(silence);
  };
  const heard = () => { // 15 s apart at most, unless something in between keeps them back
    clearTimeout(silence);
    silence = setTimeout(ask, 40000);
  };
  const ask = async () => {
    stop();
    if (paused || document.hidden) return;
    try {
      const answer = await fetch("live");
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.json());
    } catch { say("The server does not answer: asking again.", true); }
    stop();
    if (!paused && !document.hidden) poll = setTimeout(asks++ % 10 === 9 ? listen : ask, 2000);
  };
  let asks = 0;
  const listen = () => {
    stop();
    if (paused || document.hidden) return;
    stream = new EventSource("events");
    stream.onmessage = (e) => { heard(); show(JSON.parse(e.data)); };
    stream.addEventListener("beat", heard);
    stream.addEventListener("bye", () => { stop(); say("The server is stopping.", true); poll = setTimeout(ask, 5000); });
    stream.onerror = () => {
      if (stream && stream.readyState === EventSource.CLOSED) { stop(); poll = setTimeout(ask, 2000); } else say("The server does not answer: asking again.", true);
    };
    heard();
  };
  document.addEventListener("visibilitychange", listen);
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    listen();
    if (paused) say("Updates are paused", false);
  });

  let flooding = false;
  $("overload").addEventListener("click", async () => {
    if (flooding) return; // it stays in the order of focus, and so is not disabled
    flooding = true;
    $("overload").setAttribute("aria-disabled", "true");
    set($("result"), "The overload begins.");
    try {
      const answer = await fetch("overload", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
      const a = await answer.json();
      set($("result"), !answer.ok ? a.error : `Of ${a.sent}, ${a.captured} were captured and ${a.refused} refused${a.failed ? `, ${a.failed} failed` : ""}.`
        + (a.captured ? ` A capture took ${span(a.capture_ms)}` : "") + (a.captured && a.refused ? `, a refusal ${span(a.refusal_ms)}.` : a.captured ? "." : ""));
    } catch { set($("result"), "The server did not answer."); }
    flooding = false;
    $("overload").removeAttribute("aria-disabled");
  });

  let turn = 0;
  const again = (until) => {
    clearTimeout(turn);
    const left = until - performance.now();
    set($("again"), left > 0 ? `Again in ${seconds(left + 99)}` : "Now it may be tried again.");
    if (left > 0) turn = setTimeout(() => again(until), calm.matches ? 1000 : 100);
  };
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(turn);
    set($("again"), "");
    $("save").hidden = true;
    $("said").className = "";
    set($("said"), "Capturing …");
    const began = performance.now();
    try {
      const answer = await fetch("capture?" + new URLSearchParams(new FormData($("form"))));
      const took = span(performance.now() - began);
      if (answer.ok) {
        const url = URL.createObjectURL(await answer.blob()), no = Number(answer.headers.get("Screenshot-Number"));
        mine.set(no, url);
        $("save").href = url;
        $("save").download = `screenshot-${no}.${$("format").value}`;
        $("save").hidden = false;
        set($("said"), `No. ${no}, captured in ${took}: ${answer.headers.get("Screenshot-Size")} pixels; the page answered ${answer.headers.get("Screenshot-Target-Status")}.`);
        if (now) shots();
        return;
      }
      const problem = await answer.json().catch(() => ({})), wait = answer.headers.get("Retry-After");
      $("said").className = "no";
      set($("said"), `${answer.status} after ${took}: ${problem.detail || problem.title || answer.statusText}`);
      if (wait !== null) again(performance.now() + Number(wait) * 1000);
    } catch {
      $("said").className = "no";
      set($("said"), "No answer.");
    }
  });

  listen();
})();
