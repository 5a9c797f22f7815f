// A client that issues IDs in this process, from what it leases ahead.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { Part, Run, Segment, Window, runsOf, seconds } from "./ids.js";
import { AVOID, MarchError, PATIENCE, Rooms, now, soon } from "./rooms.js";

export { MarchError, Run };

const LOOK = 250; // ms between two looks after all tags
const MOST = 1_000_000_000; // IDs of a lease
const BATCH = 1000; // time-ordered IDs that a room issues at once
const AHEAD = 10_000; // ms by which the clock may be ahead of a room's
const SEEK = 10_000; // ms until the next try where no worker was free, or what was leased is to be replaced already
const REFILLS = 16; // that are under way at once
const UNKNOWN = 60_000; // ms for which a name is in use of which a room has leased nothing
const NAME = "[a-z0-9][a-z0-9._-]{0,62}";

const NONE = { left: 0 }; // a segment without IDs
const countOf = (all) => all.reduce((n, { count }) => n + count, 0); // of runs or segments
const clamp = (n, least, most) => Math.min(Math.max(n, least), most);

/** Client issues unique IDs of any number of tags. index.d.ts has the options. */
export class Client {
  #c;
  #timer;

  constructor({ addresses = [], fallback = [], reserve = 30_000, minStep = 1000, maxStep = MOST, timeout = 2000,
    tokenFile, ca, cert, key } = {}) {
    if (!(minStep >= 1 && minStep <= maxStep && maxStep <= MOST && reserve >= 1000 && timeout > 0)) {
      throw new MarchError("invalid",
        `allowed: 1 <= minStep <= maxStep <= ${MOST}, reserve >= 1000, timeout > 0 (both in ms)`);
    }
    // What all tags share. newest is the own room's part of the newest layout that an answer named; tags are by name,
    // used those to look after, needy those to lease ahead, as soon as fewer than REFILLS are under way.
    this.#c = { reserve, minStep, maxStep, began: now(), newest: new Part(), tags: new Map(), used: new Set(),
      needy: new Set(), refills: 0, rooms: new Rooms(addresses, fallback, { timeout, tokenFile, ca, cert, key }) };
    this.#timer = setInterval(() => {
      for (const tag of this.#c.used) if (tag._tend()) this.#c.needy.add(tag);
      this.#refill();
    }, LOOK).unref();
  }

  #refill() {
    for (const tag of this.#c.needy) {
      if (this.#c.refills >= REFILLS) return; // or else when one ends
      this.#c.needy.delete(tag);
      if (!tag._tend()) continue;
      this.#c.refills++;
      tag._refill().finally(() => {
        this.#c.refills--;
        this.#refill();
      });
    }
  }

  /** tag returns a handle to a tag. It asks no room. */
  tag(name) {
    return this.#c.tags.get(name) ?? new Tag(this.#c, name);
  }

  /** next returns an ID of a tag. It waits only while none is held, for some seconds at most. */
  async next(name) {
    const tag = this.tag(name);
    return tag.tryNext() ?? tag.next();
  }

  /** close drops all IDs that are held. Calls that wait end, those that ask a room as soon as it has answered. */
  close() {
    clearInterval(this.#timer);
    this.#c.rooms.close();
    for (const tag of this.#c.used) tag._close();
  }
}

/** Tag issues the IDs of one tag. */
export class Tag {
  #c;
  #path;
  #head = NONE; // the first of the segments, of which tryNext takes
  #segments = [];
  #window; // the last one of a time-ordered tag
  #timed = false;
  #leasing; // a promise of the end of the lease under way
  #target;
  #ttl = 0; // how long leases last; 0 before the first
  #leased = 0; // how many IDs were, but for those that were dropped
  #used = now();
  #looked = 0; // how many were issued at the last look
  #paced = [0, now()]; // how many were issued, and when, as the target was set
  #failed; // why the last lease did
  #retryAt = 0; // when to ask again,
  #replaceAt = 0; // and when in place of what is old

  constructor(shared, name) {
    if (typeof name !== "string" || !new RegExp(`^${NAME}$`).test(name)) {
      throw new MarchError("invalid", `tag: ${JSON.stringify(String(name).slice(0, 64))}; allowed: ${NAME}`);
    }
    this.name = name;
    this.#c = shared;
    this.#path = `/v1/tags/${name}`;
    this.#target = shared.minStep;
    shared.tags.set(name, this);
    shared.used.add(this);
  }

  /** tryNext returns an ID if one is at hand, and undefined otherwise: then await next. */
  tryNext() {
    const s = this.#head;
    if (s.left > 0 && soon() < s.until) {
      s.left--;
      const id = s.next;
      s.next = id + 1n;
      return id;
    }
    if (this.#timed) return this.#ofWindow(1)?.[0]?.first;
    this.#drop();
    if (this.#head === NONE) return undefined;
    this.#head.advance();
    return this.tryNext();
  }

  /** next returns an ID. It waits only while none is held, for some seconds at most. */
  async next() {
    return this.tryNext() ?? (await this.nextN(1))[0].first;
  }

  /** nextN returns n IDs as runs. */
  async nextN(n) {
    if (!Number.isInteger(n) || n < 1 || n > MOST) {
      throw new MarchError("invalid", `count: ${n}; allowed: 1 to ${MOST}`);
    }
    const runs = [];
    await this.#when(n, () => {
      if (this.#timed) return;
      let left = n;
      for (const s of this.#segments) {
        for (; left > 0 && s.count > 0; left -= runs.at(-1).count) runs.push(s.take(left));
      }
    });
    for (let left = n - countOf(runs); left > 0; left = n - countOf(runs)) runs.push(...await this.#nextTimed(left));
    return runs;
  }

  /** #nextTimed returns some of n IDs of a time-ordered tag: of its worker's window, or else of a room. */
  async #nextTimed(n) {
    const got = await this.#when(0, () => this.#ofWindow(n));
    if (got?.length === 0) await sleep(this.#window.unit - (Date.now() - this.#window.epoch) % this.#window.unit);
    if (got) return got;
    const most = Math.min(n, BATCH);
    return (await this.#c.rooms.ask(`${this.#path}/next`, { body: { count: String(most) },
      read: ({ runs }) => runsOf(runs, most) })).answer;
  }

  /** #ofWindow returns n IDs of a time-ordered tag if its worker's window has them now. */
  #ofWindow(n) {
    const lent = this.#timed && !this.#c.rooms.closed && soon() < this.#window?.until;
    const run = lent ? this.#window.take(n, Date.now()) : undefined;
    if (run?.count > 0) this.#used = now();
    return run && (run.count > 0 ? [run] : []);
  }

  /** nextText returns an ID as a text, by the tag's format, of a room. id is undefined for IDs of 80 bits. */
  async nextText() {
    const { answer } = await this.#c.rooms.ask(`${this.#path}/next`, { body: { count: "1", texts: true },
      read: ({ texts, runs: [run] }) => (texts ?? []).map((text) => ({ text, id: run && BigInt(run.first) })) });
    if (answer.length > 0) return answer[0];
    throw new MarchError("refused", `tag ${this.name}: it has no format, so its IDs have no texts`);
  }

  /** parseText returns the ID of a text, of a room. */
  async parseText(text) {
    let query;
    try {
      query = encodeURIComponent(text);
    } catch (error) {
      throw new MarchError("invalid", `text: ${error.message}`, 1000, { cause: error });
    }
    return (await this.#c.rooms.ask(`${this.#path}:parse?text=${query}`, { read: ({ id }) => BigInt(id) })).answer;
  }

  /** warm returns when IDs are held. */
  async warm() {
    await this.#when(1, () => {});
  }

  /** held returns how many IDs are held. */
  get held() {
    return countOf(this.#segments);
  }

  _close() {
    this.#drop(() => true);
  }

  /** _refill leases ahead, and returns when it has ended. */
  _refill() {
    return this.#lease(this.#target);
  }

  /** _tend drops what has ended. It returns whether to lease ahead: the tag is in use, and needs it. */
  _tend() {
    const [at, issued] = [now(), this.#leased - this.held];
    if (issued !== this.#looked) [this.#looked, this.#used] = [issued, at];
    this.#drop();
    if (at - this.#used < (this.#ttl || UNKNOWN)) return this.#needy;
    if (this.held === 0) {
      [this.#timed, this.#failed] = [false, undefined]; // the next call leases, and has the tag looked after again
      this.#c.used.delete(this);
      if (this.#c.tags.get(this.name) === this) this.#c.tags.delete(this.name);
    }
    return false;
  }

  /** #when runs what takes IDs, as soon as n are held. Of a time-ordered tag none need be: a room issues, too. */
  async #when(n, take) {
    const { rooms, used } = this.#c;
    used.add(this);
    for (const giveUp = now() + rooms.longest;;) {
      const at = this.#used = now();
      if (rooms.closed) throw new MarchError("closed", "the client was closed");
      this.#drop();
      if (this.#timed || this.held >= n) return take();
      if (this.#failed && at < this.#retryAt) throw this.#failed;
      if (at >= giveUp) throw new MarchError("unavailable", `tag ${this.name}: no IDs within ${rooms.longest} ms`);
      await this.#lease(Math.max(n - this.held, this.#target));
    }
  }

  /** #drop drops segments, at once: those that have ended, or that something else ends; and the IDs from a limit on. */
  #drop(ends = () => false, limit = 0n) {
    const [at, held] = [soon(), this.held];
    if (limit > 0n) for (const s of this.#segments) s.cut(limit);
    this.#segments = this.#segments.filter((s) => s.count > 0 && s.until > at && !ends(s));
    this.#head = this.#segments[0] ?? NONE;
    this.#leased -= held - this.held;
  }

  /** #old reports whether to replace what is held: it ends soon, or the room gave up a part of its range. */
  #old(s) {
    return s.due <= now() || this.#c.newest.outdates(s.part);
  }

  /** #needy reports whether to lease ahead now. */
  get #needy() {
    if (this.#ttl === 0 || this.#leasing || now() < this.#retryAt) return false;
    if (this.#timed) return !this.#window || this.#old(this.#window);
    return this.held < this.#target || now() >= this.#replaceAt && this.#segments.some((s) => this.#old(s));
  }

  /** #lease returns the end of the lease under way, or of one of n IDs or a window. While leases fail each is one try. */
  #lease(n) {
    return this.#leasing ??= this.#ask(Math.min(n, MOST)).catch((error) => {
      this.#fail(error instanceof MarchError ? error : new MarchError("internal",
        `tag ${this.name}: an answer makes no sense: ${error.message}`, 1000, { cause: error }));
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

  async #ask(n) {
    const c = this.#c;
    const window = { nonce: randomUUID(), age: `${((now() - c.began) / 1000).toFixed(3)}s` };
    if (this.#window) window.held = { worker: String(this.#window.worker), nonce: this.#window.nonce };
    const failing = this.#failed?.temporary && now() < this.#retryAt + AVOID;
    const { answer, url, sent } = await c.rooms.ask(`${this.#path}/lease`,
      { body: { count: String(n), window }, patience: failing ? 0 : PATIENCE });
    if (c.rooms.closed) return;
    c.used.add(this);
    const at = now();
    if (!c.rooms.fallback.includes(url)) { // an instance may lease under a layout that it does not report yet
      const [serves, part] = [answer.serves, answer.segment].map((message) => new Part(message ?? undefined));
      const newer = part.version > serves.version ? part : serves;
      if (newer.version < c.newest.version) c.rooms.lagging.set(url, at); // but its leases are valid
      else c.newest = newer;
    }
    const timed = Boolean(answer.time);
    let old = false;
    if (timed) {
      const w = this.#window = new Window(answer.time, sent, window.nonce, c.newest.version, this.#window);
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
      this.#leased += s.count;
      this.#segments.push(s);
    }
    [this.#timed, this.#failed, this.#retryAt, this.#replaceAt] = [timed, undefined, 0, old ? at + SEEK : 0];
  }

  /** #pace sets the target by the rate since it was last set. */
  #pace(at) {
    const { reserve, minStep, maxStep } = this.#c;
    const issued = this.#leased - this.held;
    const [taken, took] = [issued - this.#paced[0], at - this.#paced[1]];
    if (taken < this.#target / 8 && took < 10_000) return; // not enough to tell the rate
    const wanted = clamp(taken / Math.max(took, 1) * reserve * 8 / 7, this.#target / 2, this.#target * 2);
    this.#target = Math.floor(clamp(wanted, minStep, maxStep));
    this.#paced = [issued, at];
  }
}
