// Uploads with a library of Node, and prints what each of them saw, a line each.
//
// client.mjs LIBRARY URL SIZE:CHUNKED:COUNT ...   ->   SIZE CHUNKED STATUS WORDS
import http from "node:http";

const [library, url, ...jobs] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function* pieces(body) {
  for (let i = 0; i < body.length; i += 65536) yield body.subarray(i, i + 65536);
}

function viaHTTP(body, chunked) {
  return new Promise((resolve, reject) => {
    const headers = chunked ? {} : { "Content-Length": body.length };
    const req = http.request(url, { method: "POST", agent, headers, timeout: 30000 });
    req.on("timeout", () => req.destroy(new Error("30 s without an answer")));
    req.on("error", reject); // after the answer nobody listens any more
    req.on("response", (resp) => {
      resp.resume();
      resp.on("end", () => resolve(resp.statusCode));
      resp.on("error", reject);
    });
    if (!chunked) return req.end(body);
    const rest = pieces(body);
    (function more() {
      for (let p = rest.next(); !p.done; p = rest.next())
        if (!req.write(p.value)) return req.once("drain", more);
      req.end();
    })();
  });
}

async function viaFetch(body, chunked) {
  const rest = pieces(body);
  const stream = () =>
    new ReadableStream({
      pull(c) {
        const p = rest.next();
        if (p.done) c.close();
        else c.enqueue(p.value);
      },
    });
  const resp = await fetch(url, {
    method: "POST",
    body: chunked ? stream() : body,
    duplex: "half",
    signal: AbortSignal.timeout(30000),
  });
  await resp.arrayBuffer();
  return resp.status;
}

// Without this such an error ends the process: whoever meets one has lost more than an
// answer, also if that was read before.
let uncaught, fail;
process.on("uncaughtException", (e) => {
  uncaught = e;
  fail?.(e);
});

function once(body, chunked) {
  return new Promise((resolve, reject) => {
    fail = reject;
    ask(body, chunked).then(resolve, reject);
  });
}

const ask = { http: viaHTTP, fetch: viaFetch }[library];
for (const job of jobs) {
  const [size, chunked, count] = job.split(":").map(Number);
  const body = Buffer.alloc(size);
  for (let i = 0; i < count; i++) {
    try {
      const status = await once(body, chunked === 1);
      await new Promise(setImmediate);
      if (uncaught) throw uncaught;
      console.log(size, chunked, status, "-");
    } catch (e) {
      console.log(size, chunked, 0, uncaught ? "uncaught" : "-", e.code ?? e.cause?.code ?? e.name, String(e.cause?.message ?? e.message).slice(0, 120));
      uncaught = undefined;
    }
  }
}
agent.destroy();
