// A client that issues IDs in this process, from what it leases ahead. index.d.ts describes what is exported.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { Part, Run, Segment, Window, runsOf, seconds } from "./ids.js";
import { MarchError, PATIENCE, Rooms, now, soon } from "./rooms.js";

export { MarchError, Run };

const LOOK = 250; // ms for which callers take IDs before one looks at what is held
const MOST = 1_000_000_000; // IDs of a lease
const BATCH = 1000; // time-ordered IDs that a room issues at once
const AHEAD = 10_000; // ms by which the clock may be ahead of a room's
const SEEK = 10_000; // ms until the next try where no worker was free, or what was leased is to be replaced already
const REFILLS = 16; // that are under way at once
const UNKNOWN = 60_000; // ms for which a name is in use of which a room has leased nothing
const NAME = "[a-z0-9][a-z0-9._-]{0,62}";

const NONE = { left: 0, count: 0, until: Infinity }; // a segment without IDs
const countOf = (all) => all.reduce((n, { count }) => n + count, 0); // of runs or segments
const clamp = (n, least, most) => Math.min(Math.max(n, least), most);

export class Client {
  _began = now();
  _newest = new Part(); // the own room's, of the newest layout that an answer named
  _refills = 0; // under way
  #tags = new Map(); // by name
  #most = 100; // tags, before those are forgotten that are not in use

  constructor({ addresses = [], fallback = [], reserve = 30_000, minStep = 1000, maxStep = MOST, timeout = 2000,
    tokenFile, ca, cert, key } = {}) {
    if (!(minStep >= 1 && minStep <= maxStep && maxStep <= MOST && reserve >= 1000 && timeout > 0)) {
      throw new MarchError("invalid",
        `allowed: 1 <= minStep <= maxStep <= ${MOST}, reserve >= 1000, timeout > 0 (both in ms)`);
    }
    this._options = { reserve, minStep, maxStep };
    this._rooms = new Rooms(addresses, fallback, { timeout, tokenFile, ca, cert, key });
  }

  tag(name) {
    const tags = this.#tags;
    if (tags.size >= this.#most) {
      for (const tag of tags.values()) if (tag._idle) tags.delete(tag.name);
      this.#most = 2 * tags.size + 100;
    }
    return tags.get(name) ?? tags.set(name, new Tag(this, name)).get(name);
  }

  async next(name) {
    const tag = this.tag(name);
    return tag.tryNext() ?? tag.next();
  }

  close() {
    this._rooms.closed = true;
  }
}

export class Tag {
  #client;
  #rooms;
  #path;
  #head = NONE; // the first of the segments, of which tryNext takes
  #until = 0; // when it may not, but is to look at what is held
  #segments = [];
  #window; // the last one of a time-ordered tag
  #timed = false;
  #leasing; // a promise of the end of the lease under way
  #target;
  #ttl = 0; // how long leases last; 0 before the first
  #used = now();
  #issued = 0; // IDs of segments
  #paced = [0, now()]; // how many were issued, and when, as the target was set
  #failed; // why the last lease did
  #retryAt = 0; // when to ask again,
  #replaceAt = 0; // and when in place of what is old

  constructor(client, name) {
    if (typeof name !== "string" || !new RegExp(`^${NAME}$`).test(name)) {
      throw new MarchError("invalid", `tag: ${JSON.stringify(String(name).slice(0, 64))}; allowed: ${NAME}`);
    }
    [this.name, this.#path, this.#client, this.#rooms] = [name, `/v1/tags/${name}`, client, client._rooms];
    this.#target = client._options.minStep;
  }

  tryNext() {
    const s = this.#head;
    if (s.left > 0 && soon() < this.#until && !this.#rooms.closed) {
      s.left--;
      this.#issued++;
      const id = s.next[0];
      s.next[0] = id + 1n;
      return id;
    }
    if (s.left > 0 || s.count === 0) this.#look();
    if (this.#timed) return this.#ofWindow(1)?.[0]?.first;
    if (this.#head === NONE) return undefined;
    this.#head.take(0);
    return this.tryNext();
  }

  async next() {
    return this.tryNext() ?? (await this.nextN(1))[0].first;
  }

  async nextN(n) {
    if (!Number.isInteger(n) || n < 1 || n > MOST) {
      throw new MarchError("invalid", `count: ${n}; allowed: 1 to ${MOST}`);
    }
    const runs = [];
    await this.#when(n, () => {
      if (this.#timed) return;
      this.#issued += n;
      for (let left = n; left > 0; left -= runs.at(-1).count) {
        runs.push(this.#segments.find((s) => s.count > 0).take(left));
      }
    });
    for (let left = n - countOf(runs); left > 0; left = n - countOf(runs)) runs.push(...await this.#nextTimed(left));
    return runs;
  }

  /** #nextTimed returns some of n IDs of a time-ordered tag: of its worker's window, or else of a room. */
  async #nextTimed(n) {
    const got = await this.#when(0, () => this.#ofWindow(n));
    if (got?.length === 0) await sleep(this.#window.unit - (Date.now() - this.#window.epoch) % this.#window.unit);
    const some = Math.min(n, BATCH);
    return got ?? this.#ask("/next", { count: String(some) }, ({ runs }) => runsOf(runs, some));
  }

  /** #ofWindow returns n IDs of a time-ordered tag if its worker's window has them now. */
  #ofWindow(n) {
    const lent = soon() < this.#window?.until && !this.#rooms.closed;
    const run = lent ? this.#window.take(n, Date.now()) : undefined;
    return run && (run.count > 0 ? [run] : []);
  }

  async #ask(path, body, read) {
    return (await this.#rooms.ask(this.#path + path, body, read)).answer;
  }

  async nextText() {
    const texts = await this.#ask("/next", { count: "1", texts: true },
      ({ texts, runs: [run] }) => (texts ?? []).map((text) => ({ text, id: run && BigInt(run.first) })));
    if (texts.length > 0) return texts[0];
    throw new MarchError("refused", `tag ${this.name}: it has no format, so its IDs have no texts`);
  }

  async parseText(text) {
    return this.#ask(`:parse?${new URLSearchParams({ text })}`, undefined, ({ id }) => BigInt(id));
  }

  async warm() {
    await this.#when(1, () => {});
  }

  get held() {
    this.#drop();
    return countOf(this.#segments);
  }

  /** _idle reports whether the tag is not in use: what it held has ended. */
  get _idle() {
    return now() - this.#used > (this.#ttl || UNKNOWN);
  }

  /** #when runs what takes IDs, as soon as n are held. Of a time-ordered tag none need be: a room issues, too. */
  async #when(n, take) {
    for (const giveUp = now() + this.#rooms.longest;;) {
      if (this.#rooms.closed) throw new MarchError("closed", "the client was closed");
      if (this.#timed || this.held >= n) {
        const taken = take();
        this.#look();
        return taken;
      }
      const at = this.#used = now();
      if (this.#failed && at < this.#retryAt) throw this.#failed;
      if (at >= giveUp) {
        throw new MarchError("unavailable", `tag ${this.name}: no IDs within ${this.#rooms.longest} ms`);
      }
      await this.#lease(Math.max(n - this.held, this.#target));
    }
  }

  /** #look drops what has ended, and leases ahead what is missing. Callers look. */
  #look() {
    this.#used = now();
    this.#drop();
    const client = this.#client;
    if (client._refills >= REFILLS || !this.#needy) return;
    client._refills++;
    this.#lease(this.#target).finally(() => client._refills--);
  }

  /** #drop drops segments, at once: those that have ended, or that something else ends; and the IDs from a limit on. */
  #drop(ends = () => this.#rooms.closed, limit = 0n) {
    const at = soon();
    if (limit > 0n) for (const s of this.#segments) s.cut(limit);
    this.#segments = this.#segments.filter((s) => s.count > 0 && s.until > at && !ends(s));
    this.#head = this.#segments[0] ?? NONE;
    this.#until = Math.min(this.#head.until, at + LOOK);
  }

  /** #old reports whether to replace what is held: it ends soon, or the room gave up a part of its range. */
  #old(s) {
    return s.due <= now() || this.#client._newest.outdates(s.part);
  }

  /** #needy reports whether to lease ahead now. */
  get #needy() {
    if (this.#ttl === 0 || this.#leasing || now() < this.#retryAt) return false;
    if (this.#timed) return !this.#window || this.#old(this.#window);
    return this.held < this.#target || now() >= this.#replaceAt && this.#segments.some((s) => this.#old(s));
  }

  /** #lease returns the end of the lease under way, or of one of n IDs or a window. While leases fail each is one try. */
  #lease(n) {
    return this.#leasing ??= this.#leases(Math.min(n, MOST)).catch((error) => {
      this.#fail(error instanceof MarchError ? error
        : new MarchError("internal", `tag ${this.name}: an answer makes no sense`, error));
    }).finally(() => {
      this.#leasing = undefined;
    });
  }

  #fail(error) {
    this.#failed = error;
    this.#retryAt = now() + (error.noWindow ? SEEK : error.kind === "unavailable" ? 500 + Math.random() * 250
      : error.retryAfter);
    if (error.noWindow) [this.#timed, this.#ttl] = [true, this.#ttl || 6 * SEEK];
    this.#drop(() => error.noWindow, error.limit); // a time-ordered tag's are of a counter that is no more
  }

  async #leases(n) {
    const [client, rooms, nonce] = [this.#client, this.#rooms, randomUUID()];
    const window = { nonce, age: `${((now() - client._began) / 1000).toFixed(3)}s`, held: this.#window?.held };
    const { answer, url, sent } = await rooms.ask(`${this.#path}/lease`, { count: String(n), window }, undefined,
      this.#failed?.temporary ? 0 : PATIENCE);
    const at = now();
    if (!rooms.fallback.includes(url)) { // an instance may lease under a layout that it does not report yet
      for (const part of [answer.serves, answer.segment].map((message) => new Part(message ?? undefined))) {
        if (part.version >= client._newest.version) client._newest = part;
      }
    }
    const timed = Boolean(answer.time);
    let old = false;
    if (timed) {
      const w = this.#window = new Window(answer.time, sent, nonce, client._newest.version, this.#window);
      if (Date.now() - (at - sent) - w.there > AHEAD) w.until = 0; // rooms issue each ID
      this.#ttl = w.ttl;
      this.#drop(() => true); // of a counter of this name that is no more
    } else {
      const s = new Segment(answer.segment, n, sent, seconds(answer.ttl) * 1000);
      const limit = BigInt(answer.limit) || 2n ** 63n;
      this.#drop(undefined, limit);
      s.cut(limit);
      if (s.until <= at) {
        throw new MarchError("unavailable", `room at ${url}: its answer took longer than ${answer.ttl}`);
      }
      if (s.count === 0) throw new MarchError("exhausted", `tag ${this.name}: no ID is left below its limit`);
      old = this.#old(s);
      if (!old) this.#drop((each) => this.#old(each));
      this.#pace(at);
      this.#ttl = s.ttl || Infinity;
      this.#segments.push(s);
    }
    [this.#timed, this.#failed, this.#retryAt, this.#replaceAt] = [timed, undefined, 0, old ? at + SEEK : 0];
  }

  /** #pace sets the target by the rate since it was last set. */
  #pace(at) {
    const { reserve, minStep, maxStep } = this.#client._options;
    const [taken, took] = [this.#issued - this.#paced[0], at - this.#paced[1]];
    if (taken < this.#target / 8 && took < 10_000) return; // not enough to tell the rate
    const wanted = clamp(taken / Math.max(took, 1) * reserve * 8 / 7, this.#target / 2, this.#target * 2);
    this.#target = Math.floor(clamp(wanted, minStep, maxStep));
    this.#paced = [this.#issued, at];
  }
}
