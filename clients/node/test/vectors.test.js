// The vectors of testdata/clients, which the Go code computes for all clients.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Part, Segment, Window, runsOf, seconds } from "../src/ids.js";
import { MarchError, errorOf, together } from "../src/rooms.js";

const vectors = (name) =>
  JSON.parse(readFileSync(new URL(`../../../testdata/clients/${name}.json`, import.meta.url), "utf8"));

test("segments", () => {
  for (const v of vectors("segments")) {
    const s = new Segment(v.segment, 1e9);
    for (let k = 0; k < v.at.length; k += 2) {
      assert.equal(String(s.id(s.at + BigInt(v.at[k]))), v.at[k + 1]);
      assert.equal(s.ordinal(BigInt(v.at[k + 1])), s.at + BigInt(v.at[k]));
    }
    for (const [limit, count] of v.below) {
      const cut = new Segment(v.segment, 1e9);
      cut.cut(BigInt(limit));
      assert.equal(String(cut.count), count);
    }
    assert.equal(new Segment(v.segment, 1e9).take(2).count, Math.min(2, Number(v.runs[0][1])));
    for (const run of v.runs) {
      const taken = s.take(1e9);
      assert.deepEqual([String(taken.first), String(taken.count)], run);
    }
  }
  for (const change of [{ first: "49" }, { count: "0" }, { count: "1001" }, { boundary: "0" }, { version: "0" }]) {
    assert.throws(() => new Segment({ ...vectors("segments")[3].segment, count: "1000", ...change }, 1000));
  }
});

test("layouts", () => {
  for (const v of vectors("layouts")) {
    assert.equal(new Part(v.serves).outdates(new Part(v.segment)), v.outdated, JSON.stringify(v));
  }
});

test("windows", () => {
  for (const v of vectors("windows")) {
    const window = new Window(v);
    for (const take of v.takes) {
      const run = window.take(Number(take.n), Number(take.nowMs));
      const got = run ? (run.count > 0 ? [run.first, run.count, run.step].map(String) : []) : null;
      assert.deepEqual(got, take.run, JSON.stringify(take));
    }
  }
});

test("runs", () => {
  for (const v of vectors("runs")) {
    assert.deepEqual(runsOf([v.run], v.ids.length).flatMap((run) => [...run]).map(String), v.ids);
  }
});

test("ttl", () => {
  for (const v of vectors("ttl")) {
    const [ttl, at] = [seconds(v.ttl) * 1000, Number(v.afterMs)];
    const s = new Segment(vectors("segments")[0].segment, 1e9, 0, ttl);
    assert.deepEqual([s.until <= at, s.due <= at], [v.ended, v.replace], JSON.stringify(v));
  }
});

test("errors", () => {
  for (const v of vectors("errors")) {
    const e = errorOf(v.status, v.body, v.retryAfter);
    assert.deepEqual([e.kind, e.temporary || e.noWindow, e.retryAfter / 1000, String(e.limit)],
      [v.kind, v.elsewhere, v.againSeconds, v.limit], JSON.stringify(v));
  }
});

test("together", () => {
  for (const v of vectors("together")) {
    assert.equal(together(v.failures.map((kind) => new MarchError(kind, "a room"))).kind, v.kind, JSON.stringify(v));
  }
});
