// The client with a room of the test's own.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import http from "node:http";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import { Client } from "../src/client.js";
import { Window } from "../src/ids.js";
import { MarchError, Rooms, errorOf, now, together } from "../src/rooms.js";

/** withRoom runs a test with a client of a room, which leases IDs from 1 on, with what the test changes in the answers.
 * Of a time-ordered tag it issues up to most at once, if faults has no reason why not. */
function withRoom(name, run) {
  test(name, async () => {
    const room = { last: 0, changes: {}, most: 0, faults: [], asks: [], held: [], takes: 0, under: 0, atOnce: 0 };
    const answer = (path, count, window) => {
      const part = { version: "1", boundary: "1", range: { lower: "0", upper: "1" } };
      const issues = path.endsWith("/next");
      if (room.held.length === room.recovers) room.changes = {};
      if (issues) room.asks.push(count);
      else room.held.push(window.held !== undefined);
      if (issues && count > room.most) return { reason: "invalid" };
      if (issues && room.faults.length > 0) return { reason: room.faults.pop() };
      const run = { first: String(room.last + 1), count: String(count) };
      room.last += count;
      if (issues) return room.issued ?? { runs: [run], texts: ["a"] };
      return { segment: { ...part, ...run }, ttl: "600s", serves: part, limit: "9223372036854775807", time: null,
        ...room.changes };
    };
    const server = http.createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      const said = answer(request.url, Number(JSON.parse(body || "{}").count), JSON.parse(body || "{}").window);
      room.atOnce = Math.max(room.atOnce, ++room.under);
      await sleep(room.takes);
      room.under--;
      response.writeHead(said.reason ? 503 : 200).end(JSON.stringify(said));
    });
    await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
    const ids = new Client({ addresses: [`http://127.0.0.1:${server.address().port}`] });
    try {
      await run(ids, room, server.address().port);
    } finally {
      ids.close();
      server.close();
    }
  });
}

const fails = (kind, call) => assert.rejects(call, (error) => assert.equal(error.kind, kind) ?? true);
const countOf = (runs) => runs.reduce((sum, run) => sum + run.count, 0);

/** wait has the event loop stand still, as a process that is stopped. */
function wait(ms) {
  for (const until = performance.now() + ms; performance.now() < until;);
}

/** later has the clock be later. */
function later(ms) {
  const clock = performance.now;
  performance.now = () => clock.call(performance) + ms;
}

/** lent is a window of a worker with 256 IDs in a second. The room's clock is now ms ahead. */
function lent(now, until, since = -9000) {
  const at = Date.now();
  return { tag: { workerBits: 12, sequenceBits: 8, timeBits: 40, unit: "1s", epochMs: "0" },
    window: { worker: "1", fromMs: String(at + since), untilMs: String(at + until), nowMs: String(at + now) } };
}

withRoom("nextN beside others returns all", async (ids) => {
  const tag = ids.tag("order");
  await tag.warm();
  const got = await Promise.all([600, 600, 5000].map((n) => tag.nextN(n)));
  assert.deepEqual(got.map(countOf), [600, 600, 5000]);
  assert.equal(new Set(got.flat().flatMap((run) => [...run])).size, 6200);
});

withRoom("a handle from before its tag exists ends with its lease and the client", async (ids, room) => {
  const order = ids.tag("order");
  room.changes = { reason: "not_found" };
  await fails("not_found", () => order.next());
  await sleep(1100);
  room.changes = { ttl: "1s" };
  await order.next();
  const leased = room.last;
  await sleep(1500);
  assert.ok(room.last > leased); // it is looked after
  ids.close();
  assert.equal(order.tryNext(), undefined);
  await fails("closed", () => order.next());
});

withRoom("no ID after the end of a lease, whoever stood still", async (ids, room) => {
  const order = ids.tag("order");
  room.changes = { ttl: "0.4s" };
  await order.next();
  wait(500);
  assert.equal(order.tryNext(), undefined);
});

withRoom("a name is forgotten a minute after its use, but a handle goes on", async (ids, room) => {
  const handle = ids.tag("none");
  for (const kind of ["not_found", "denied", "invalid", "unauthenticated"]) {
    room.changes = { reason: kind };
    await fails(kind, () => ids.next(kind.replace("_", "-")));
  }
  await fails("unauthenticated", () => handle.next());
  assert.equal(ids.tag("none"), handle);
  later(61_000);
  while (ids.tag("none") === handle) await sleep(50);
  room.changes = {};
  const [one, other] = [await handle.next(), await ids.next("none")];
  assert.notEqual(one, other);
  for (const name of ["", "Order", "order/1", "order\n", "-order", ["order"], "o".repeat(64)]) {
    await fails("invalid", () => ids.next(name));
    assert.throws(() => ids.tag(name), { kind: "invalid" });
  }
  ids.close();
  assert.equal(handle.tryNext(), undefined);
});

withRoom("a tag that was made anew, as a time-ordered one, has no IDs of the counter", async (ids, room) => {
  const order = ids.tag("order");
  await order.next();
  room.changes = { time: lent(0, 600_000) };
  await order.nextN(1000);
  assert.ok(await order.next() > 2n ** 40n);
  const tag = { workerBits: 12, sequenceBits: 8, timeBits: 40, unit: "1s" };
  const window = { worker: "1", fromMs: "0", untilMs: "9000", nowMs: "0" };
  const before = new Window({ tag, window });
  before.take(1, 5000);
  for (const [unit, goesOn] of [["1s", true], ["2s", false]]) {
    const after = new Window({ tag: { ...tag, unit }, window }, 0, "", 0n, before);
    assert.equal(after.take(1, 4000) === undefined, goesOn);
  }
});

test("the clock goes on by the time of a suspended machine, also after the wall clock went back", () => {
  const [began, wall] = [now(), Date.now];
  try {
    for (const step of [-3_600_000, -3_600_000 + 1_800_000, 0]) { // set back, then suspended for 30 minutes, set right
      Date.now = () => wall() + step;
      now();
    }
  } finally {
    Date.now = wall;
  }
  assert.ok(now() - began >= 1_800_000);
});

withRoom("a failure of long ago does not leave a call one try", async (ids, room) => {
  room.changes = { reason: "unavailable" };
  await fails("unavailable", () => ids.next("order"));
  later(6000);
  room.recovers = room.held.length + 2;
  assert.ok(await ids.next("order") > 0n);
});

test("an answer whose body does not end holds no call up", async () => {
  const server = http.createServer((_, response) => response.writeHead(200).write("{"));
  await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
  const ids = new Client({ addresses: [`http://127.0.0.1:${server.address().port}`], timeout: 200 });
  try {
    await assert.rejects(ids.tag("order").nextText(), { kind: "unavailable", message: /no answer within 200 ms/ });
  } finally {
    ids.close();
    server.close();
    server.closeAllConnections();
  }
});

withRoom("close leaves the answer to a call that asks a room", async (ids, room) => {
  [room.most, room.takes] = [1, 300];
  const text = ids.tag("text").nextText();
  while (room.asks.length === 0) await sleep(10);
  ids.close();
  assert.equal((await text).text, "a");
});

withRoom("a call waits for an answer within the timeout", async (_, room, port) => {
  room.takes = 3500; // longer than a client would try again
  const ids = new Client({ addresses: [`http://127.0.0.1:${port}`], timeout: 60_000 });
  assert.equal(await ids.next("order"), 1n);
  ids.close();
});

test("an answer has a client wait for half a minute at most", () => {
  assert.equal(errorOf(429, "", "86400").retryAfter, 30_000);
});

withRoom("without a window a room issues, in batches", async (ids, room) => {
  room.changes = { reason: "refused", metadata: { window: "none" } };
  [room.most, room.faults] = [2000, ["unavailable", "unavailable"]];
  assert.equal(countOf(await ids.tag("event").nextN(5000)), 5000);
  assert.deepEqual(room.asks, Array(7).fill(1000));
  [room.changes, room.most, room.asks] = [{ time: lent(0, 600_000, 590_000) }, 256, []];
  assert.equal(countOf(await ids.tag("other").nextN(200)), 200);
  await fails("invalid", () => ids.tag("other").nextN(600));
  assert.deepEqual(room.asks, [200, 600]);
  room.faults = ["refused"];
  await fails("refused", () => ids.tag("other").next());
});

withRoom("an answer of another program is an error, and no room is avoided for a worker", async (ids, room, port) => {
  room.changes = { reason: "too_many", metadata: { window: "none" } };
  room.most = 10;
  const [event, run] = [ids.tag("event"), { first: "1", count: "4" }];
  assert.equal(countOf(await event.nextN(5)), 5);
  for (room.issued of [[], {}, { runs: [] }, { runs: [run] }, { runs: [run, run] }, { runs: 5 },
    { runs: [{ ...run, count: "x" }] }, { runs: [{ ...run, count: "9" }, { ...run, count: "-4" }] }]) {
    await fails("internal", () => event.nextN(5));
  }
  for (room.issued of [[], {}, { texts: ["a"] }, { texts: 5, runs: [] }, { texts: ["a"], runs: [{ first: "x" }] }]) {
    await fails("internal", () => event.nextText());
  }
  const rooms = new Rooms([`http://127.0.0.1:${port}`], [], { timeout: 2000 });
  const asks = () => rooms.ask("/v1/tags/a/lease", { body: { count: "1", window: {} } });
  await fails("too_many", asks);
  assert.ok([...rooms.failed.values()][0] < 0);
  rooms.close();
});

test("of the failures of several instances one has no worker: a room issues IDs", () => {
  const none = Object.assign(new MarchError("refused", "none"), { noWindow: true });
  const both = together([none, new MarchError("unavailable", "away")]);
  assert.deepEqual([both.kind, both.message, both.noWindow], ["unavailable", "none; away", true]);
});

test("a token goes to this machine alone where there is no TLS, and addresses are checked", async () => {
  for (const [host, here] of [["127.0.0.1", true], ["127.255.1.20", true], ["127.0.0.1.nip.io", false],
    ["127.example.net", false], ["localhost.net", false]]) {
    const tokenFile = new URL("../package.json", import.meta.url); // no token of one word: it is not sent at all
    const rooms = new Rooms([`http://${host}:1`], [], { timeout: 2000, tokenFile });
    const why = await rooms.ask("/", { patience: 0 }).catch((error) => error.message);
    assert.equal(why.includes("no TLS"), !here, why);
    rooms.close();
  }
  for (const addresses of [undefined, [], ["http://a:70000"], ["a:1"], ["http://a/b"]]) {
    assert.throws(() => new Client({ addresses }), { kind: "invalid" });
  }
});

withRoom("a room that lags behind leases what callers need at once", async (_, room, port) => {
  room.changes = { serves: { version: "2", boundary: "2", range: { lower: "0", upper: "1" } } };
  const ids = new Client({ addresses: [`http://127.0.0.1:${port}`], maxStep: 1000 });
  const [order, began] = [ids.tag("order"), performance.now()];
  for (let k = 0; k < 15; k++) assert.equal(countOf(await order.nextN(5000)), 5000);
  assert.ok(performance.now() - began < 12_000); // and not one each second
  for (let k = 0; k < 6; k++) { // it refills, too
    await order.nextN(Math.max(order.held - 500, 1));
    while (order.held < 1000) await sleep(10);
  }
  assert.ok(performance.now() - began < 40_000);
  ids.close();
});

withRoom("all tags that need it are leased ahead at a look", async (_, room, port) => {
  const interval = globalThis.setInterval;
  let look;
  globalThis.setInterval = (run) => {
    look = run;
    return interval(() => {}, 1e9);
  };
  const ids = new Client({ addresses: [`http://127.0.0.1:${port}`] });
  globalThis.setInterval = interval;
  const tags = Array.from({ length: 100 }, (_, k) => ids.tag(`tag${k}`));
  for (const tag of tags) await tag.nextN(10);
  room.takes = 20;
  look();
  for (let k = 0; k < 3000 && tags.some((tag) => tag.held < 1000); k++) await sleep(10);
  assert.equal(room.held.length, 200);
  assert.ok(room.atOnce <= 16, `${room.atOnce} leases at once`);
  ids.close();
});

withRoom("a call ends, whatever rooms lease", async (ids, room) => {
  room.changes = { segment: { version: "1", boundary: "1", range: { upper: "1" }, first: "1", count: "1" } };
  const call = ids.tag("order").nextN(1_000_000);
  await sleep(50);
  later(12_000);
  await assert.rejects(call, { kind: "unavailable", message: /no IDs within/ });
});

withRoom("a room that lags behind is asked before those of fallback", async (_, room, port) => {
  const [own, other] = [`http://127.0.0.1:${port}`, "http://127.0.0.1:1"];
  const rooms = new Rooms([own], [other], { timeout: 20_000 });
  rooms.lagging.set(own, now());
  assert.equal((await rooms.ask("/", { body: { count: "1", window: {} } })).url, own);
  assert.ok(rooms.failed.get(other) < 0); // it was not asked
  rooms.close();
});

withRoom("a window ends by the clock that only goes forward, and with its client", async (ids, room) => {
  room.changes = { time: lent(0, 600_000) };
  const closing = ids.tag("closing");
  await closing.next();
  [room.changes, room.most] = [{ time: lent(599_700, 600_000) }, 1];
  assert.ok(await ids.next("event") > 2n ** 40n);
  room.changes = { reason: "refused", metadata: { window: "none" } };
  wait(500);
  assert.ok(await ids.next("event") < 2n ** 40n);
  ids.close();
  await fails("closed", () => closing.next());
  await fails("closed", () => closing.nextN(1));
  await fails("closed", () => ids.next("closing"));
});

withRoom("a clock that is far ahead borrows one worker, not another one each second", async (ids, room) => {
  [room.changes, room.most] = [{ time: lent(-30_000, 600_000) }, 1];
  for (let k = 0; k < 3; k++) {
    assert.ok(await ids.next("event") < 2n ** 40n);
    await sleep(1100);
  }
  assert.equal(room.held.filter((held) => !held).length, 1);
});

withRoom("texts are asked for again, as the reasons of errors say, and not of a closed client", async (ids, room) => {
  [room.most, room.faults] = [1, ["unavailable", "unavailable"]];
  const tag = ids.tag("text");
  assert.equal((await tag.nextText()).text, "a");
  assert.deepEqual(room.asks, [1, 1, 1]);
  ids.close();
  await fails("closed", () => tag.nextText());
  await fails("closed", () => tag.parseText("a"));
});

withRoom("a file that is not there is no failure of a room", async (_, room, port) => {
  for (const [options, kind] of [[{ tokenFile: "/no/file" }, "unauthenticated"], [{ ca: "/no/file" }, "invalid"]]) {
    const ids = new Client({ addresses: [`http://127.0.0.1:${port}`], ...options });
    await assert.rejects(() => ids.next("order"), (e) => e.kind === kind && e.message.includes("/no/file"));
    ids.close();
  }
});

withRoom("a client that is not closed does not keep its process", async (_, room, port) => {
  const module = new URL("../src/client.js", import.meta.url);
  const program = `import { Client } from "${module}"
    await new Client({ addresses: ["http://127.0.0.1:${port}"] }).next("order")`;
  await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program]);
  assert.ok(room.last >= 1000);
});
