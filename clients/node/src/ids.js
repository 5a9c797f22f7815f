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
 * Segment is IDs of a part: left consecutive ones from next[0] on, and others by their ordinals, which count the part's
 * IDs from 0: at is the first of them, end is after the last. From until on none may be issued; from due on they are to
 * be replaced.
 */
export class Segment {
  next = new BigInt64Array(1); // adding to it makes one BigInt for an ID
  left = 0;

  constructor(message, asked, sent = 0, ttl = 0) {
    const [first, count] = [BigInt(message.first), Number(message.count)];
    const { boundary, lower, upper } = this.part = new Part(message);
    this.width = upper - lower;
    this.ttl = ttl;
    this.until = ttl > 0 ? sent + ttl : Infinity;
    this.due = this.until - ttl / 3;
    this.at = this.ordinal(first);
    this.end = this.at + BigInt(count);
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

  /** take takes the first of the IDs as far as they are consecutive, n at most. With n = 0 they are those of next. */
  take(n) {
    if (this.left === 0) {
      const first = this.at;
      this.next[0] = this.id(first);
      this.at = this.width === this.part.boundary ? this.end : min(this.end, (first / this.width + 1n) * this.width);
      this.left = Number(this.at - first);
    }
    const run = new Run(this.next[0], Math.min(n, this.left));
    this.next[0] += BigInt(run.count);
    this.left -= run.count;
    return run;
  }

  /** cut drops the IDs from a limit on. */
  cut(limit) {
    this.left = Number(max(min(limit - this.next[0], BigInt(this.left)), 0n));
    this.end = max(min(this.end, this.ordinal(limit)), this.at);
  }
}

/** seconds returns a duration of an answer, such as "600s"; 0 for none. */
export const seconds = (duration) => Number.parseFloat(duration ?? "0");

/** Window is the IDs of whole ticks of a worker that is lent for a time, above those of the window before. */
export class Window {
  constructor({ tag, window }, sent = 0, nonce = "", version = 0n, before = undefined) {
    const [worker, from, to, there] = [window.worker, window.fromMs, window.untilMs, window.nowMs].map(Number);
    const [ticks, workers, full] = [tag.timeBits, tag.workerBits, tag.sequenceBits].map((bits) => 2 ** bits);
    if (!(from < to && worker >= 0 && worker < workers)) {
      throw new TypeError(`worker ${worker} of ${workers} from ${from} until ${to} ms`);
    }
    Object.assign(this, { from, to, there, ticks, full });
    this.held = { worker: window.worker, nonce }; // with the proof that the worker is ours
    this.part = new Part({ version }); // until any other layout
    this.until = sent + to - there;
    this.ttl = to - Math.max(there, from);
    this.due = this.until - this.ttl / 2;
    this.size = workers * full; // IDs of a tick
    const last = tag.order === "WORKER_ORDER_LAST";
    [this.step, this.place] = last ? [BigInt(workers), BigInt(worker)] : [1n, BigInt(worker * full)];
    this.unit = Math.round(seconds(tag.unit) * 1000);
    this.epoch = Number(tag.epochMs ?? 0);
    this.policy = tag.sequence;
    this.carryTo = Number(tag.carryTo ?? 0) || Math.max(Math.floor(full / 2) - 1, 1);
    this.randomBelow = Math.min(Number(tag.randomBelow ?? 0) || 100, full);
    this.layout = [ticks, this.size, this.step, this.unit, this.epoch].join();
    const same = before?.layout === this.layout; // or else the tag was made anew
    [this.tick, this.last] = same ? [before.tick, before.last] : [-1, 0]; // of the last ID, and its sequence
  }

  /**
   * take returns up to n IDs of the tick at a time in Unix ms: none if the tick is full; undefined if the window, the
   * clock or the bits do not allow any, so that a room must issue them.
   */
  take(n, now) {
    const tick = Math.floor((now - this.epoch) / this.unit);
    const start = this.epoch + tick * this.unit;
    if (tick < Math.max(this.tick, 0) || tick >= this.ticks || start < this.from || start + this.unit > this.to ||
      this.ticks * this.size > 2 ** 63) { // IDs of more bits exist only as texts
      return undefined;
    }
    let first = 0;
    if (tick === this.tick) first = this.last + 1;
    else if (this.policy === "SEQUENCE_POLICY_RANDOM") first = Math.floor(Math.random() * this.randomBelow);
    else if (this.policy === "SEQUENCE_POLICY_CARRY") {
      first = Math.min(this.last < this.carryTo ? this.last + 1 : 1, this.full - 1);
    }
    const count = Math.max(Math.min(n, this.full - first), 0);
    if (count > 0) [this.tick, this.last] = [tick, first + count - 1];
    return new Run(BigInt(tick) * BigInt(this.size) + this.place + BigInt(first) * this.step, count, this.step);
  }
}
