// The arithmetic of IDs: segments of counters, and ticks of time-ordered tags. It asks no room and no clock.

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

/** Part is a room's part of a layout: the IDs with lower <= id mod boundary < upper. */
export class Part {
  constructor(message) {
    const range = message?.range ?? {};
    [this.version, this.boundary, this.lower, this.upper] = [
      message?.version, message?.boundary, range.lower, range.upper].map((n) => BigInt(n ?? 0));
  }

  /** outdates reports whether a room with this part must replace a segment. */
  outdates(s) {
    const kept = this.boundary === s.boundary && this.lower <= s.lower && s.upper <= this.upper;
    return s.version < this.version && !kept;
  }
}

/** Segment is count IDs of a part: first, and the smallest ones above it. From until on none may be issued. */
export class Segment extends Part {
  constructor(message, until = Infinity) {
    super(message);
    this.first = BigInt(message.first);
    this.count = Number(message.count);
    this.until = until; // by the client's clock
  }

  /** check throws if the segment cannot be an answer to a request for so many IDs. */
  check(asked) {
    const residue = this.boundary > 0n ? this.first % this.boundary : -1n;
    if (!(0n <= this.lower && this.lower <= residue && residue < this.upper && this.upper <= this.boundary &&
      this.version > 0n && this.count > 0 && this.count <= asked && this.at(this.count - 1) < 2n ** 63n)) {
      throw new TypeError(`a segment of ${this.count} IDs from ${this.first}; asked for: ${asked}`);
    }
    return this;
  }

  /** aging reports whether a third of its time is left, or less. */
  aging(now, ttl) {
    return this.until - ttl / 3 <= now;
  }

  /** at returns the k-th ID, from 0. */
  at(k) {
    const width = this.upper - this.lower;
    const offset = this.first % this.boundary - this.lower;
    const q = offset + BigInt(k);
    return this.first - offset + q / width * this.boundary + q % width;
  }

  /** split returns the first n IDs, and the rest. */
  split(n) {
    n = Math.min(n, this.count);
    const part = (first, count) => Object.assign(Object.create(Segment.prototype), this, { first, count });
    return [part(this.first, n), part(this.at(n), this.count - n)];
  }

  /** below returns the IDs below a limit. */
  below(limit) {
    const blocks = limit / this.boundary - this.first / this.boundary;
    const residues = min(max(limit % this.boundary, this.lower), this.upper) - this.first % this.boundary;
    return this.split(Number(max(blocks * (this.upper - this.lower) + residues, 0n)))[0];
  }

  /** consecutive returns how many of the first IDs are. */
  get consecutive() {
    if (this.upper - this.lower === this.boundary) return this.count;
    return Number(min(BigInt(this.count), this.upper - this.first % this.boundary));
  }
}

/** seconds returns a duration of an answer, such as "600s"; 0 for none. */
export const seconds = (duration) => Number.parseFloat(duration ?? "0");

/** Ticks are the IDs of a time-ordered tag: of whole ticks of a worker's window, none below the last ID's tick. */
export class Ticks {
  constructor(tag, before) {
    [this.worker, this.sequence, this.time] = [tag.workerBits, tag.sequenceBits, tag.timeBits];
    this.unit = Math.round(seconds(tag.unit) * 1000);
    this.epoch = Number(tag.epochMs ?? 0);
    this.workerLast = tag.order === "WORKER_ORDER_LAST";
    this.policy = tag.sequence;
    this.full = 2 ** this.sequence;
    this.carryTo = Number(tag.carryTo ?? 0) || Math.max(Math.floor(this.full / 2) - 1, 1);
    this.randomBelow = Math.min(Number(tag.randomBelow ?? 0) || 100, this.full);
    // The last ID. Later settings of a tag go on above it.
    this.tick = before?.tick ?? -1;
    this.last = before?.last ?? 0;
  }

  /**
   * take returns up to n IDs of the tick at a time in Unix ms: none if the tick is full; undefined if the worker's
   * window, the clock or the bits do not allow any, so that a room must issue them.
   */
  take(n, now, { worker, since, until }) {
    const tick = Math.floor((now - this.epoch) / this.unit);
    const start = this.epoch + tick * this.unit;
    if (tick < Math.max(this.tick, 0) || tick >= 2 ** this.time || start < since || start + this.unit > until ||
      this.time + this.worker + this.sequence > 63) { // IDs of more bits exist only as texts
      return undefined;
    }
    const sequence = tick === this.tick ? this.last + 1 : this.#begin();
    const count = Math.max(Math.min(n, this.full - sequence), 0);
    if (count > 0) [this.tick, this.last] = [tick, sequence + count - 1];
    const [wide, s, w] = [BigInt(this.worker), BigInt(this.sequence), BigInt(worker)];
    const place = this.workerLast ? (BigInt(sequence) << wide) + w : (w << s) + BigInt(sequence);
    return new Run((BigInt(tick) << (wide + s)) + place, count, this.workerLast ? 1n << wide : 1n);
  }

  /** perSecond returns how many IDs one worker has in a second: a room issues no more at once. */
  get perSecond() {
    return this.full * Math.floor(1000 / this.unit);
  }

  /** left returns for how many ms the tick at a time goes on. */
  left(now) {
    return this.unit - (now - this.epoch) % this.unit;
  }

  #begin() {
    if (this.policy === "SEQUENCE_POLICY_RANDOM") return Math.floor(Math.random() * this.randomBelow);
    if (this.policy !== "SEQUENCE_POLICY_CARRY") return 0;
    return Math.min(this.last >= this.carryTo ? 1 : this.last + 1, this.full - 1);
  }
}
