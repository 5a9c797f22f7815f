// What a client holds: segments of counters, and windows of time-ordered tags. It asks no room and no clock.

const min = (a, b) => (a < b ? a : b);
const max = (a, b) => (a > b ? a : b);

/** Run is count IDs: first, first + step, and so on. Iterating over it yields each of them. */
export class Run {
  constructor(first, count, step = 1n) {
    Object.assign(this, { first, count, step });
  }

  *[Symbol.iterator]() {
    for (let k = 0, id = this.first; k < this.count; k++, id += this.step) yield id;
  }
}

/** runsOf returns the IDs of the runs of an answer, which must be as many as were asked for. */
export function runsOf(runs, asked) {
  const all = runs.map(({ first, count, stride }) => new Run(BigInt(first), Number(count), BigInt(stride ?? 1)));
  if (all.reduce((n, run) => run.count > 0 ? n + run.count : NaN, 0) === asked) return all;
  throw new TypeError(`${JSON.stringify(runs)}; IDs asked for: ${asked}`);
}

/** Part is a room's part of a layout: the IDs with lower <= id mod boundary < upper. */
export class Part {
  constructor({ version = 0, boundary = 0, range } = {}) {
    const { lower = 0, upper = 0 } = range ?? {};
    [this.version, this.boundary, this.lower, this.upper] = [version, boundary, lower, upper].map(BigInt);
  }

  /** outdates reports whether a room with this part must replace what it leased of an older one. */
  outdates(old) {
    const kept = this.boundary === old.boundary && this.lower <= old.lower && old.upper <= this.upper;
    return old.version < this.version && !kept;
  }
}

/**
 * Segment is IDs of a part: left consecutive ones from next on, and others by their ordinals, which count the part's IDs
 * from 0: at is the first of them, end is after the last. From until on, by the client's clock, none may be issued; from
 * due on, when a third of the time is left, it is to be replaced.
 */
export class Segment {
  constructor(message, asked, sent = 0, ttl = 0) {
    const [first, count] = [BigInt(message.first), Number(message.count)];
    const { boundary, lower, upper } = this.part = new Part(message);
    this.width = upper - lower;
    this.ttl = ttl;
    this.until = ttl > 0 ? sent + ttl : Infinity;
    this.due = this.until - ttl / 3;
    this.at = this.ordinal(first);
    this.end = this.at + BigInt(count);
    [this.next, this.left] = [first, 0];
    if (!(this.part.version > 0n && 0n <= lower && lower < upper && upper <= boundary && count > 0 && count <= asked &&
      this.id(this.at) === first && this.id(this.end - 1n) < 2n ** 63n)) {
      throw new TypeError(`a segment of ${count} IDs from ${first}; asked for: ${asked}`);
    }
  }

  /** count returns how many IDs there are. */
  get count() {
    return this.left + Number(this.end - this.at);
  }

  id(ordinal) {
    return ordinal / this.width * this.part.boundary + this.part.lower + ordinal % this.width;
  }

  /** ordinal returns how many IDs of the part are below one. */
  ordinal(id) {
    const { boundary, lower } = this.part;
    return id / boundary * this.width + min(max(id % boundary - lower, 0n), this.width);
  }

  /** advance goes on to the next consecutive IDs when none is left of the last ones. */
  advance() {
    if (this.left > 0) return;
    const first = this.at;
    this.next = this.id(first);
    this.at = this.width === this.part.boundary ? this.end : min(this.end, (first / this.width + 1n) * this.width);
    this.left = Number(this.at - first);
  }

  /** take takes the first of the IDs as far as they are consecutive, n at most. */
  take(n) {
    this.advance();
    const run = new Run(this.next, Math.min(n, this.left));
    this.next += BigInt(run.count);
    this.left -= run.count;
    return run;
  }

  /** cut drops the IDs from a limit on. */
  cut(limit) {
    this.left = Number(max(min(limit - this.next, BigInt(this.left)), 0n));
    this.end = max(min(this.end, this.ordinal(limit)), this.at);
  }
}

/** seconds returns a duration of an answer, such as "600s"; 0 for none. */
export const seconds = (duration) => Number.parseFloat(duration ?? "0");

/** Window is the IDs of whole ticks of a worker that is lent for a time, above those of the window before. */
export class Window {
  constructor({ tag, window }, sent = 0, nonce = "", version = 0n, before = undefined) {
    [this.worker, this.from, this.to, this.there] = [window.worker, window.fromMs, window.untilMs, window.nowMs]
      .map(Number);
    this.nonce = nonce; // the proof that the worker is ours,
    this.part = new Part({ version }); // until any other layout
    this.until = sent + this.to - this.there; // by the client's clock, as is due: to be renewed
    this.ttl = this.to - Math.max(this.there, this.from);
    this.due = this.until - this.ttl / 2;
    [this.ticks, this.workers, this.full] = [tag.timeBits, tag.workerBits, tag.sequenceBits].map((bits) => 2 ** bits);
    this.workerLast = tag.order === "WORKER_ORDER_LAST";
    this.unit = Math.round(seconds(tag.unit) * 1000);
    this.epoch = Number(tag.epochMs ?? 0);
    this.policy = tag.sequence;
    this.carryTo = Number(tag.carryTo ?? 0) || Math.max(Math.floor(this.full / 2) - 1, 1);
    this.randomBelow = Math.min(Number(tag.randomBelow ?? 0) || 100, this.full);
    if (!(this.from < this.to && this.worker >= 0 && this.worker < this.workers)) {
      throw new TypeError(`worker ${this.worker} of ${this.workers} from ${this.from} until ${this.to} ms`);
    }
    this.layout = [this.ticks, this.workers, this.full, this.workerLast, this.unit, this.epoch].join();
    const same = before?.layout === this.layout; // or else the tag was made anew
    [this.tick, this.last] = same ? [before.tick, before.last] : [-1, 0]; // of the last ID
  }

  /**
   * take returns up to n IDs of the tick at a time in Unix ms: none if the tick is full; undefined if the window, the
   * clock or the bits do not allow any, so that a room must issue them.
   */
  take(n, now) {
    const tick = Math.floor((now - this.epoch) / this.unit);
    const start = this.epoch + tick * this.unit;
    if (tick < Math.max(this.tick, 0) || tick >= this.ticks || start < this.from || start + this.unit > this.to ||
      this.ticks * this.workers * this.full > 2 ** 63) { // IDs of more bits exist only as texts
      return undefined;
    }
    const sequence = tick === this.tick ? this.last + 1 : this.#begin();
    const count = Math.max(Math.min(n, this.full - sequence), 0);
    if (count > 0) [this.tick, this.last] = [tick, sequence + count - 1];
    const [workers, full] = [BigInt(this.workers), BigInt(this.full)];
    const step = this.workerLast ? workers : 1n;
    const place = BigInt(this.worker) * (this.workerLast ? 1n : full) + BigInt(sequence) * step;
    return new Run(BigInt(tick) * workers * full + place, count, step);
  }

  /** #begin returns the sequence of a tick's first ID. */
  #begin() {
    if (this.policy === "SEQUENCE_POLICY_RANDOM") return Math.floor(Math.random() * this.randomBelow);
    if (this.policy !== "SEQUENCE_POLICY_CARRY") return 0;
    return Math.min(this.last < this.carryTo ? this.last + 1 : 1, this.full - 1);
  }
}
