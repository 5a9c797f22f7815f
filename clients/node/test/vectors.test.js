// The vectors of testdata/clients, which the Go code computes for all clients.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Part, Run, Segment, Ticks, seconds } from "../src/ids.js";
import { MarchError, errorOf, together } from "../src/rooms.js";

const vectors = (name) =>
  JSON.parse(readFileSync(new URL(`../../../testdata/clients/${name}.json`, import.meta.url), "utf8"));

test("segments", () => {
  for (const v of vectors("segments")) {
    const s = new Segment(v.segment).check(1e9);
    for (let k = 0; k < v.at.length; k += 2) assert.equal(String(s.at(Number(v.at[k]))), v.at[k + 1]);
    let rest = s;
    for (const [first, count] of v.runs) {
      assert.deepEqual([String(rest.first), String(rest.consecutive)], [first, count]);
      rest = rest.split(rest.consecutive)[1];
    }
    for (const [limit, count] of v.below) assert.equal(String(s.below(BigInt(limit)).count), count);
  }
  for (const change of [{ first: "49" }, { count: "0" }, { count: "1001" }, { boundary: "0" }, { version: "0" }]) {
    assert.throws(() => new Segment({ ...vectors("segments")[3].segment, count: "1000", ...change }).check(1000));
  }
});

test("layouts", () => {
  for (const v of vectors("layouts")) {
    assert.equal(new Part(v.serves).outdates(new Segment(v.segment)), v.outdated, JSON.stringify(v));
  }
});

test("windows", () => {
  for (const v of vectors("windows")) {
    const ticks = new Ticks(v.tag);
    const [worker, since, until] = [v.window.worker, v.window.fromMs, v.window.untilMs].map(Number);
    for (const take of v.takes) {
      const run = ticks.take(Number(take.n), Number(take.nowMs), { worker, since, until });
      const got = run ? (run.count > 0 ? [run.first, run.count, run.step].map(String) : []) : null;
      assert.deepEqual(got, take.run, JSON.stringify(take));
    }
  }
});

test("runs", () => {
  for (const v of vectors("runs")) {
    const run = new Run(BigInt(v.run.first), Number(v.run.count), BigInt(v.run.stride ?? 1));
    assert.deepEqual([...run].map(String), v.ids);
  }
});

test("ttl", () => {
  for (const v of vectors("ttl")) {
    const [ttl, at] = [seconds(v.ttl) * 1000, Number(v.afterMs)];
    const s = new Segment(vectors("segments")[0].segment, ttl || Infinity);
    assert.deepEqual([s.until <= at, s.aging(at, ttl)], [v.ended, v.replace], JSON.stringify(v));
  }
});

test("errors", () => {
  for (const v of vectors("errors")) {
    const e = errorOf(v.status, v.body, v.retryAfter);
    assert.deepEqual([e.kind, e.elsewhere, e.retryAfter / 1000, String(e.limit)],
      [v.kind, v.elsewhere, v.againSeconds, v.limit], JSON.stringify(v));
  }
});

test("together", () => {
  for (const v of vectors("together")) {
    assert.equal(together(v.failures.map((kind) => new MarchError(kind, "a room"))).kind, v.kind, JSON.stringify(v));
  }
});
