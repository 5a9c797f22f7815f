// A client that issues IDs in this process, from what it leases ahead.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { Part, Run, Segment, Ticks, seconds } from "./ids.js";
import { MarchError, Rooms, now, soon } from "./rooms.js";

export { MarchError, Run };

const PATIENCE = 3000; // ms for which callers wait for rooms that do not answer; later ones get the error at once
const LOOK = 250; // ms between two looks after all tags
const MOST = 1_000_000_000; // IDs of a lease
const BATCH = 100_000; // IDs that a room issues at once
const AHEAD = 10_000; // ms by which the clock may be ahead of a room's
const NO_WINDOW = { worker: 0, since: 0, until: 0, ends: 0 };
const NAME = "[a-z0-9][a-z0-9._-]{0,62}";

const clamp = (n, least, most) => Math.min(Math.max(n, least), most);

/** Client issues unique IDs of any number of tags. index.d.ts has the options. */
export class Client {
  #c;
  #tags = new Map();
  #timer;

  constructor({ addresses, fallback = [], reserve = 30_000, minStep = 1000, maxStep = MOST, timeout = 2000,
    tokenFile, ca, cert, key }) {
    if (!(minStep >= 1 && minStep <= maxStep && maxStep <= MOST && reserve >= 1000 && timeout > 0)) {
      throw new MarchError("invalid",
        `allowed: 1 <= minStep <= maxStep <= ${MOST}, reserve >= 1000, timeout > 0 (both in ms)`);
    }
    // What all tags share. newest is the own room's part of the newest layout that an answer named.
    this.#c = { reserve, minStep, maxStep, began: now(), closed: false, newest: new Part(),
      rooms: new Rooms(addresses, fallback, { timeout, tokenFile, ca, cert, key }),
      forget: (tag) => this.#tags.get(tag.name) === tag && this.#tags.delete(tag.name) };
    this.#timer = setInterval(() => this.#tags.forEach((tag) => tag._tend(now())), LOOK).unref();
  }

  /** tag returns a handle to a tag, which the client keeps. It asks no room. */
  tag(name) {
    const tag = this.#tag(name);
    tag._kept = true;
    return tag;
  }

  /** next returns an ID of a tag. It waits only while none is held, for some seconds at most. */
  async next(name) {
    const tag = this.#tag(name);
    return tag.tryNext() ?? tag.next();
  }

  #tag(name) {
    let tag = this.#tags.get(name);
    if (tag === undefined) this.#tags.set(name, tag = new Tag(this.#c, name));
    return tag;
  }

  /** close drops all IDs that are held. Calls that wait end. */
  close() {
    this.#c.closed = true;
    clearInterval(this.#timer);
    for (const tag of this.#tags.values()) tag._close();
    this.#c.rooms.close();
  }
}

/** Tag issues the IDs of one tag. */
export class Tag {
  #c;
  #path;
  #id = 0n; // the next ID of the present run,
  #left = 0; // how many it has,
  #until = 0; // and from when on none of them may be issued
  #segments = []; // of the first the present run is; its count and first are those after the run
  #ticks; // of a time-ordered tag
  #window = NO_WINDOW; // its worker, since and until when in Unix ms, and when it ends by the client's clock
  #batch = BATCH; // IDs that a room issues at once
  #held; // the room that lends the worker, and the proof that it is ours
  #renewAt = 0;
  #version = 0n; // the newest layout when the window was leased
  #timed = false;
  #known = false; // whether a room has leased anything
  #leasing; // a promise of the end of the lease under way
  #target;
  #limit = 0n;
  #ttl = 0;
  #issued = 0; // up to the end of the present run
  #looked = 0; // how many were issued at the last look
  #used = now();
  #paced = [0, now()]; // when the target was computed: IDs issued, and the time
  #failing = 0; // since when leases fail, 0 while they do not: with which error, when to ask again, the pause then
  #failed;
  #retryAt = 0;
  #pause = 0;
  #replaceAt = 0; // when to replace segments, or to ask for a worker, again; and the pause then
  #again = 1000;

  constructor(shared, name) {
    if (!new RegExp(`^${NAME}$`).test(name)) {
      throw new MarchError("invalid", `tag: ${JSON.stringify(String(name).slice(0, 64))}; allowed: ${NAME}`);
    }
    this.name = name;
    this._kept = false; // the program has a handle: what is forgotten is not looked after, and would not end
    this.#c = shared;
    this.#path = `/v1/tags/${encodeURIComponent(name)}`;
    this.#target = shared.minStep;
  }

  /** tryNext returns an ID if one is at hand, and undefined otherwise: then await next. */
  tryNext() {
    if (this.#left > 0 && soon() < this.#until) {
      this.#left--;
      const id = this.#id;
      this.#id = id + 1n;
      return id;
    }
    if (this.#timed) return this.#ofWindow(1)?.[0]?.first;
    return this.#turn() ? this.tryNext() : undefined;
  }

  /** next returns an ID. It waits only while none is held, for some seconds at most. */
  async next() {
    for (;;) {
      const id = this.tryNext();
      if (id !== undefined) return id;
      await this.warm();
      if (this.#timed) return (await this.#nextTimed(1))[0].first;
    }
  }

  /** nextN returns n IDs as runs. */
  async nextN(n) {
    if (!Number.isInteger(n) || n < 1 || n > MOST) {
      throw new MarchError("invalid", `count: ${n}; allowed: 1 to ${MOST}`);
    }
    let at;
    do { // another call may have taken what this one waited for
      await this.#wait(n);
      at = now();
      this.#drop((s) => s.until <= at);
    } while (!this.#timed && this.held < n);
    if (this.#timed) return this.#nextTimed(n);
    const runs = [];
    while (n > 0 && (this.#left > 0 || this.#turn(at))) {
      const run = new Run(this.#id, Math.min(n, this.#left));
      this.#id += BigInt(run.count);
      this.#left -= run.count;
      n -= run.count;
      const last = runs.at(-1);
      if (last && last.first + BigInt(last.count) === run.first) last.count += run.count;
      else runs.push(run);
    }
    return runs;
  }

  /** nextText returns an ID as a text, by the tag's format, of a room. id is undefined for IDs of 80 bits. */
  async nextText() {
    const answer = await this.#askAgain("/next", { body: { count: "1", texts: true } });
    if (!answer.texts?.length) {
      throw new MarchError("refused", `tag ${this.name}: it has no format, so its IDs have no texts`);
    }
    return { text: answer.texts[0], id: answer.runs[0] && BigInt(answer.runs[0].first) };
  }

  /** parseText returns the ID of a text, of a room. */
  async parseText(text) {
    return BigInt((await this.#askAgain(`:parse?text=${encodeURIComponent(text)}`, { method: "GET" })).id);
  }

  /** #askAgain returns the answer of a room. After a temporary error it asks again, for some seconds. */
  async #askAgain(path, request) {
    for (let [began, pause] = [now(), 20]; !this.#c.closed; pause = Math.min(2 * pause, 500)) {
      try {
        return (await this.#c.rooms.ask(this.#path + path, request)).answer;
      } catch (error) {
        const wait = error.kind === "unavailable" ? pause : error.retryAfter;
        if (!error.temporary || now() + wait >= began + PATIENCE) throw error;
        await sleep(wait);
      }
    }
    throw new MarchError("closed", "the client was closed");
  }

  /** warm returns when IDs are held. */
  async warm() {
    await this.#wait(1);
  }

  /** held returns how many IDs are held. */
  get held() {
    return this.#segments.reduce((n, s) => n + s.count, this.#left);
  }

  _close() {
    this.#drop(() => true);
  }

  /** #turn begins the next run of consecutive IDs, and returns false if there is none. */
  #turn(at = now()) {
    this.#drop((s) => s.until <= at || s.count === 0);
    const s = this.#segments[0];
    if (s === undefined) return false;
    const [run, rest] = s.split(Math.min(s.consecutive, Math.max(Math.floor(this.#target / 8), 1)));
    this.#id = run.first;
    this.#left = run.count;
    this.#until = run.until;
    this.#issued += run.count;
    this.#segments[0] = rest;
    this.#leaseAhead(at);
    return true;
  }

  /** #wait returns when n IDs are held, or the tag is time-ordered. */
  async #wait(n) {
    const c = this.#c;
    const giveUp = now() + PATIENCE;
    for (;;) {
      const at = now();
      this.#used = at;
<<<<<<< HEAD
      if (this.#c.rooms.closed) throw new MarchError("closed", "the client was closed");
      this.#drop();
      if (this.#timed || this.held >= n) return take();
      const failed = at < this.#retryAt ? this.#failed : undefined;
      if (failed || at >= giveUp) {
        throw failed ?? new MarchError("unavailable", `tag ${this.name}: too few IDs are leased in time`);
=======
      if (c.closed) throw new MarchError("closed", "the client was closed");
      this.#drop((s) => s.until <= at);
      const lent = at < this.#window.ends && Date.now() < this.#window.until;
      if (this.#timed ? at < this.#retryAt || lent : this.held >= n) return;
      const failed = this.#failing > 0 ? this.#failed : undefined;
      if (at < this.#retryAt && (!failed?.temporary || at - this.#failing >= PATIENCE)) throw failed;
      if (at >= giveUp) {
        throw failed ?? new MarchError("unavailable", `tag ${this.name}: no IDs within ${PATIENCE} ms`);
>>>>>>> 5da3d109 (ledger: Order calls over all rooms)
      }
      if (this.#leasing === undefined && at >= this.#retryAt) this.#lease(Math.max(n - this.held, this.#need(at), 1));
      const pause = new AbortController();
      const until = this.#leasing ? giveUp : Math.min(giveUp, this.#retryAt);
      await Promise.race([sleep(Math.max(until - at, 1), undefined, { signal: pause.signal }).catch(() => {}),
        ...(this.#leasing ? [this.#leasing] : [])]);
      pause.abort();
    }
  }

  /** #ofWindow returns n IDs of a time-ordered tag if its worker's window has them now. */
  #ofWindow(n) {
    const lent = this.#timed && !this.#c.closed && soon() < this.#window.ends;
    const run = lent ? this.#ticks?.take(n, Date.now(), this.#window) : undefined;
    if (run?.count > 0) this.#used = now();
    return run && (run.count > 0 ? [run] : []);
  }

  /** #nextTimed returns n IDs of a time-ordered tag: of its worker's window, or else of a room. */
  async #nextTimed(n) {
    const runs = [];
    while (n > 0) {
      await this.#wait(0);
      let got = this.#ofWindow(n);
      if (got?.length === 0) await sleep(this.#ticks.left(Date.now()));
      const count = Math.min(n, this.#batch);
      try {
        got ??= (await this.#askAgain("/next", { body: { count: String(count) } })).runs
          .map((r) => new Run(BigInt(r.first), Number(r.count), BigInt(r.stride ?? 1)));
      } catch (error) {
        if (error.kind !== "invalid" || count === 1) throw error;
        this.#batch = Math.floor(count / 2); // a worker has less in a second
        continue;
      }
      runs.push(...got);
      n -= got.reduce((sum, run) => sum + run.count, 0);
    }
    return runs;
  }

  /** #drop drops segments, at once. */
  #drop(ends) {
    if (this.#segments.length > 0 && ends(this.#segments[0])) {
      this.#issued -= this.#left;
      this.#left = 0;
    }
    this.#segments = this.#segments.filter((s, k) => !ends(s) && (s.count > 0 || k === 0 && this.#left > 0));
  }

  /** #old reports whether a segment must be replaced: it ends soon, or the room gave up a part of its range. */
  #old(s, at) {
    return s.aging(at, this.#ttl) || this.#c.newest.outdates(s);
  }

  /** #need returns how many IDs to lease now. Of a window it is 1. */
  #need(at) {
    if (this.#timed) {
      const changed = this.#version < this.#c.newest.version; // the room may have given up the worker
      return at >= (changed ? this.#replaceAt : this.#renewAt) ? 1 : 0;
    }
    const held = this.held;
    if (at >= this.#replaceAt && this.#segments.some((s) => this.#old(s, at))) {
      return clamp(held, this.#target, 2 * this.#target);
    }
    return held < this.#target ? this.#target : 0;
  }

  /** _tend looks after the tag: it drops what has ended, and leases ahead. */
  _tend(at) {
    if (this.#issued - this.#left !== this.#looked) {
      this.#looked = this.#issued - this.#left;
      this.#used = at;
    }
    this.#drop((s) => s.until <= at);
    const unused = this.#ttl > 0 && at - this.#used >= this.#ttl; // let it end
    if (this.#known && !unused) this.#leaseAhead(at);
  }

  /** #leaseAhead begins to lease if the tag needs that. */
  #leaseAhead(at) {
    const n = this.#leasing === undefined && at >= this.#retryAt ? this.#need(at) : 0;
    if (n > 0) this.#lease(n);
  }

  /** #pace sets the target by the rate since it was last set. */
  #pace(at) {
    const { reserve, minStep, maxStep } = this.#c;
    const issued = this.#issued - this.#left;
    const [taken, took] = [issued - this.#paced[0], at - this.#paced[1]];
    if (taken < this.#target / 8 && took < 10_000) return; // not enough to tell the rate
    const wanted = clamp(taken / Math.max(took, 1) * reserve * 8 / 7, this.#target / 2, this.#target * 2);
    this.#target = Math.floor(clamp(wanted, minStep, maxStep));
    this.#paced = [issued, at];
  }

  /** #lease begins to lease n IDs or more, or a window, or notes why not. */
  #lease(n) {
    const at = now();
    this.#pace(at);
    const asked = Math.min(Math.max(n, this.#need(at)), MOST);
    this.#replaceAt = at + Math.min(this.#again, Math.max(this.#ttl / 6, 100));
    this.#again = Math.min(2 * this.#again, 60_000);
    this.#leasing = this.#ask(asked).catch((error) => {
      this.#fail(error instanceof MarchError ? error : new MarchError("internal",
        `tag ${this.name}: an answer makes no sense: ${error.message}`, 1000, { cause: error }));
    }).finally(() => {
      this.#leasing = undefined;
    });
  }

  async #ask(n) {
    const c = this.#c;
    const window = { nonce: randomUUID(), age: `${((now() - c.began) / 1000).toFixed(3)}s` };
    if (this.#held) window.held = { worker: String(this.#window.worker), nonce: this.#held.nonce };
    const { answer, from, sent } = await c.rooms.ask(`${this.#path}/lease`,
      { body: { count: String(n), window }, prefer: this.#held?.from });
    if (c.closed) return;
    const serves = new Part(answer.serves);
    if (!from.other && serves.version > c.newest.version) c.newest = serves;
    else if (!from.other && serves.version < c.newest.version) c.rooms.avoid(from); // it lags, but its leases are valid
    this.#timed = Boolean(answer.time);
    if (this.#timed) this.#takeWindow(answer.time, from, sent, window.nonce);
    else this.#takeSegment(answer, from, sent, n);
    this.#known = true;
    this.#failing = this.#retryAt = this.#pause = 0;
  }

  #takeWindow({ tag, window }, from, sent, nonce) {
    const [worker, since, until, there] = [window.worker, window.fromMs, window.untilMs, window.nowMs].map(Number);
    this.#window = { worker, since, until, ends: 0 }; // it is ours, whatever the clock: the next answer renews it
    this.#held = { from, nonce };
    if (Date.now() - (now() - sent) - there > AHEAD) {
      throw new MarchError("refused", `tag ${this.name}: the clock is ahead of that of the room at ${from.url}`);
    }
    this.#ticks = new Ticks(tag, this.#ticks);
    this.#batch = Math.min(BATCH, this.#ticks.perSecond);
    this.#window.ends = sent + until - there;
    this.#ttl = until - Math.max(there, since);
    this.#renewAt = now() + this.#ttl / 2;
    this.#again = 1000;
    this.#version = this.#c.newest.version;
  }

  #takeSegment(answer, from, sent, n) {
    const at = now();
    this.#ttl = seconds(answer.ttl) * 1000;
    let s = new Segment(answer.segment, this.#ttl > 0 ? sent + this.#ttl : Infinity).check(n);
    this.#limited(BigInt(answer.limit));
    if (this.#limit > 0n) s = s.below(this.#limit);
    if (s.until <= at) {
      throw new MarchError("unavailable", `room at ${from.url}: its answer took longer than ${answer.ttl}`);
    }
    if (s.count === 0) throw new MarchError("exhausted", `tag ${this.name}: no ID is left below ${this.#limit}`);
    if (!this.#old(s, at)) {
      this.#drop((old) => this.#old(old, at));
      this.#again = 1000;
      this.#replaceAt = 0;
    }
    this.#segments.push(s);
  }

  #fail(error) {
    const at = now();
    this.#failing ||= at;
    this.#failed = error;
    this.#pause = clamp(2 * this.#pause, 20, 500);
    const short = error.kind === "unavailable" && !error.noWindow;
    this.#retryAt = at + (short ? this.#pause * (0.5 + Math.random() / 2)
      : Math.max(error.retryAfter, error.noWindow ? this.#again : 0));
    this.#timed = error.noWindow || this.#timed && error.kind !== "not_found";
    this.#limited(error.limit);
    if (!this.#known && !this._kept && ["not_found", "invalid", "denied"].includes(error.kind)) {
      this.#c.forget(this); // names of no tag do not fill the memory
    }
  }

<<<<<<< HEAD
  async #ask(n) {
    const c = this.#c;
    const window = { nonce: randomUUID(), age: `${((now() - c.began) / 1000).toFixed(3)}s` };
    if (this.#window) window.held = { worker: String(this.#window.worker), nonce: this.#window.nonce };
    const { answer, url, sent } = await c.rooms.ask(`${this.#path}/lease`,
      { body: { count: String(n), window }, patience: this.#failed?.temporary ? 0 : PATIENCE });
    if (c.rooms.closed) return;
    const [at, serves] = [now(), new Part(answer.serves ?? undefined)];
    if (!c.rooms.fallback.includes(url)) {
      if (serves.version < c.newest.version) c.rooms.failed.set(url, at); // it lags, but its leases are valid
      else c.newest = serves;
=======
  /** #limited drops the IDs from a limit on. */
  #limited(limit) {
    if (limit <= 0n || limit === this.#limit) return;
    this.#limit = limit;
    if (this.#id + BigInt(this.#left) > limit) { // the present run goes past it
      const left = Math.max(Number(limit - this.#id), 0);
      this.#issued -= this.#left - left;
      this.#left = left;
>>>>>>> 5da3d109 (ledger: Order calls over all rooms)
    }
    this.#segments = this.#segments.map((s) => s.below(limit));
    this.#drop(() => false);
  }
}
