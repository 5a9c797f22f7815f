// Calls of rooms: which instance to ask, and what its errors mean.

import { readFile } from "node:fs/promises";
import http from "node:http";
import https from "node:https";
import { setTimeout as sleep } from "node:timers/promises";

export const PATIENCE = 3000; // ms for which callers wait for rooms that do not answer; later ones get the error
export const AVOID = 5000; // ms for which an instance that failed is asked only after all others
const LONGEST = 30_000; // ms that an answer may have a client wait
const TRIES = 3; // how many hanging instances a call waits for
// Errors after which another instance may succeed. Of the failures of several the first of these is the call's.
const ELSEWHERE = ["unavailable", "too_many", "went_back", "no_range"];
const KINDS = [...ELSEWHERE, "internal", "invalid", "not_found", "exhausted", "refused", "denied", "unauthenticated"];
// What a status means without March's reason: it is a proxy's, or HTTP's own.
const STATUSES = { 400: "invalid", 401: "unauthenticated", 403: "denied", 408: "unavailable", 429: "too_many",
  499: "unavailable", 502: "unavailable", 503: "unavailable", 504: "unavailable" };

const LOOPBACK = /^(localhost|\[::1\]|127(\.(25[0-5]|(2[0-4]|1?\d)?\d)){3})$/;

/** MarchError is an error of March; kind says what a caller can do about it. */
export class MarchError extends Error {
  constructor(kind, message, retryAfter = 1000, options = undefined) {
    super(message, options);
    this.name = "MarchError";
    this.kind = kind;
    this.retryAfter = retryAfter; // ms before another try
    this.limit = 0n; // of an exhausted tag, where it is known
    this.noWindow = false; // no worker is free for a time-ordered tag: rooms still issue its IDs
  }

  /** temporary reports whether another try may succeed: no room has IDs, or may give any, at the moment. */
  get temporary() {
    return ELSEWHERE.includes(this.kind);
  }
}

/** errorOf returns the error of an answer that is no success. */
export function errorOf(status, body, retryAfter, name = "room") {
  let answer = {};
  try {
    answer = JSON.parse(body) ?? {};
  } catch { /* not March's */ }
  let kind = KINDS.find((k) => k === answer.reason) ?? STATUSES[status];
  if (answer.reason && kind !== answer.reason && !ELSEWHERE.includes(kind)) kind = undefined; // of a later release, say
  const after = /^\d+$/.test(retryAfter ?? "") ? Math.min(Math.max(1000, Number(retryAfter) * 1000), LONGEST) : 1000;
  const error = new MarchError(kind ?? "internal", `${name}: ${answer.message ?? `HTTP status ${status}`}`, after);
  const limit = answer.metadata?.limit;
  error.limit = /^\d{1,19}$/.test(limit) ? BigInt(limit) : 0n;
  error.noWindow = answer.metadata?.window === "none";
  return error;
}

/** together returns the error of a call after the failures of several instances: the first in the order of KINDS. */
export function together(failures) {
  const order = (e) => KINDS.indexOf(e.kind);
  const first = failures.reduce((least, e) => order(e) < order(least) ? e : least);
  first.message = failures.map((e) => e.message).join("; ");
  first.noWindow = failures.some((e) => e.noWindow);
  return first;
}

let [skew, wall, at] = [0, Date.now(), performance.now()];

/**
 * now returns the client's clock, in ms. It never goes back. The time of a suspended machine is the wall clock's, where
 * that goes on by a second more than the other between two calls.
 */
export function now() {
  const [wallNow, atNow] = [Date.now(), performance.now()];
  const more = wallNow - wall - (atNow - at);
  if (more > 1000) skew += more;
  [wall, at] = [wallNow, atNow];
  return at + skew;
}

let [read, ahead] = [0, 0];

/** soon returns now, or up to 1 ms more: within a ms it reads one clock instead of two. */
export function soon() {
  const at = Date.now();
  if (at !== read) [read, ahead] = [at, now() + 1];
  return ahead;
}

/** Rooms are the rooms that a client may ask. */
export class Rooms {
  #options;
  #agents = { // an idle connection ends before the room ends it
    "http:": new http.Agent({ keepAlive: true, timeout: 4000 }),
    "https:": new https.Agent({ keepAlive: true, timeout: 4000 }),
  };

  constructor(addresses, fallback, options) {
    const first = Math.floor(Math.random() * addresses.length); // so that clients spread over a room's instances
    const all = [...addresses.slice(first), ...addresses.slice(0, first), ...fallback];
    const fits = (a) => /^https?:\/\/([^\][/:@]+|\[[^\]/]+\])(:\d+)?\/?$/.test(a) &&
      !(Number(/:(\d+)\/?$/.exec(a)?.[1]) > 65_535);
    if (addresses.length === 0 || !all.every(fits)) {
      throw new MarchError("invalid", `addresses: ${all}; allowed: 1 or more http[s]://HOST:PORT`);
    }
    this.failed = new Map(all.map((url) => [url, -AVOID])); // when each address failed last,
    this.lagging = new Map(this.failed); // and when it lagged behind the newest layout
    this.closed = false;
    this.longest = PATIENCE + (TRIES + 1) * options.timeout; // that a lease may take
    this.fallback = fallback;
    this.#options = options;
  }

  /**
   * ask returns what is read of the first answer of a room, the room's address, and when the request was sent. After a
   * temporary error of all it asks again, as long as its patience lasts. Without a body the request is a GET.
   */
  async ask(path, { body, patience = PATIENCE, read = (answer) => answer } = {}) {
    const giveUp = now() + patience;
    for (let pause = 20;; pause = Math.min(2 * pause, 500)) {
      const [start, failures] = [now(), []];
      // Those that failed just now are asked last, and other rooms after the own; of each those that lag behind, and
      // then the last to fail.
      const rank = (url) => (start < this.failed.get(url) + AVOID ? 4 : 0) + (this.fallback.includes(url) ? 2 : 0) +
        (start < this.lagging.get(url) + AVOID ? 1 : 0);
      for (const [url] of [...this.failed].sort(([a, at], [b, bt]) => rank(a) - rank(b) || at - bt)) {
        const sent = now();
        try {
          return { answer: await this.#call(url, path, body, read), url, sent };
        } catch (error) {
          if (!error.noWindow && (error.temporary || error.kind === "internal")) this.failed.set(url, now());
          if (!error.temporary && !error.noWindow) throw error;
          failures.push(error);
        }
        if (now() - start >= TRIES * this.#options.timeout) break;
      }
      const error = together(failures);
      const wait = error.kind === "unavailable" ? pause * (0.5 + Math.random() / 2) : error.retryAfter;
      if (!error.temporary || error.noWindow || now() + wait >= giveUp) throw error;
      await sleep(wait);
    }
  }

  close() {
    this.closed = true;
    for (const agent of Object.values(this.#agents)) {
      agent.keepAlive = false; // a call that is under way keeps its connection, and nobody after it
      for (const socket of Object.values(agent.freeSockets).flat()) socket.destroy();
    }
  }

  async #call(address, path, body, read) {
    if (this.closed) throw new MarchError("closed", "the client was closed");
    const { timeout, tokenFile, ca, cert, key } = this.#options;
    const [url, name] = [new URL(address), `room at ${address}`];
    const secure = url.protocol === "https:";
    const headers = { "Content-Type": "application/json" };
    if (tokenFile && !secure && !LOOPBACK.test(url.hostname)) {
      throw new MarchError("unauthenticated", `${name}: no TLS, so the token is not sent`);
    }
    const content = (file, kind) => readFile(file, "utf8").catch((error) => { // as it is now: calls are few
      throw new MarchError(kind, `${file}: ${error.message}`, 1000, { cause: error });
    });
    if (tokenFile) {
      const token = (await content(tokenFile, "unauthenticated")).trim();
      if (!/^[!-~]+$/.test(token)) throw new MarchError("unauthenticated", `${tokenFile}: no token of one word`);
      headers.Authorization = `Bearer ${token}`;
    }
    const [caPem, certPem, keyPem] = await Promise.all([ca, cert, key].map((file) => file && content(file, "invalid")));
    let status, text, after;
    try {
      ({ status, text, after } = await new Promise((resolve, reject) => {
        const request = (secure ? https : http).request(url.origin + path, { method: body ? "POST" : "GET", headers,
          ca: caPem, cert: certPem, key: keyPem, agent: this.#agents[url.protocol],
          signal: AbortSignal.timeout(timeout) }, (response) => {
          const chunks = [];
          response.on("data", (chunk) => chunks.push(chunk)).on("error", reject).on("end", () => resolve({
            status: response.statusCode, text: Buffer.concat(chunks).toString(), after: response.headers["retry-after"],
          }));
        });
        request.on("error", reject).end(body === undefined ? undefined : JSON.stringify(body));
      }));
    } catch (error) {
      const late = ["AbortError", "TimeoutError"].includes(error.name);
      const why = late ? `no answer within ${timeout} ms` : error.message || error.code;
      throw new MarchError("unavailable", `${name}: ${why}`, 1000, { cause: error });
    }
    if (status !== 200) throw errorOf(status, text, after, name);
    try {
      return read(JSON.parse(text));
    } catch (error) {
      throw new MarchError("internal", `${name}: its answer makes no sense: ${error.message}`);
    }
  }
}
