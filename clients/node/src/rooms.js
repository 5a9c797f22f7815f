// Calls of rooms: which instance to ask, and what its errors mean.

import { readFile } from "node:fs/promises";
import http from "node:http";
import https from "node:https";

const AVOID = 5000; // ms for which an instance that failed is asked only after all others
const LONGEST = 30_000; // ms that an answer may have a client wait
const TRIES = 3; // how many hanging instances a call waits for
// Errors after which another instance may succeed. Of the failures of several the first of these is the call's.
const ELSEWHERE = ["unavailable", "too_many", "went_back", "no_range"];
const KINDS = ["internal", "invalid", "not_found", "exhausted", "refused", "denied", "unauthenticated", ...ELSEWHERE];
// What a status means without March's reason: it is a proxy's, or HTTP's own.
const STATUSES = { 400: "invalid", 401: "unauthenticated", 403: "denied", 408: "unavailable", 429: "too_many",
  499: "unavailable", 502: "unavailable", 503: "unavailable", 504: "unavailable" };

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

  /** elsewhere reports whether another instance may succeed. */
  get elsewhere() {
    return this.noWindow || this.temporary;
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

/** together returns the error of a call after the failures of several instances. */
export function together(failures) {
  if (failures.length === 1) return failures[0];
  const kind = ELSEWHERE.find((k) => failures.some((e) => e.kind === k)) ?? failures[0].kind;
  const error = new MarchError(kind, failures.map((e) => e.message).join("; "),
    Math.max(...failures.map((e) => e.retryAfter)));
  error.noWindow = failures.every((e) => e.noWindow);
  return error;
}

let skew = 0;
const began = Date.now() - performance.now();

/** now returns the client's clock, in ms. It never goes back, and goes on while the machine is suspended. */
export function now() {
  const at = performance.now();
  skew = Math.max(skew, Date.now() - began - at);
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
  #rooms;
  #answers; // the one that answered last
  #options;
  #agents = { // an idle connection ends before the room ends it
    "http:": new http.Agent({ keepAlive: true, timeout: 4000 }),
    "https:": new https.Agent({ keepAlive: true, timeout: 4000 }),
  };

  constructor(addresses, fallback, options) {
    if (addresses.length === 0) throw new MarchError("invalid", "addresses: none; allowed: 1 or more");
    const first = Math.floor(Math.random() * addresses.length); // so that clients spread over a room's instances
    const own = [...addresses.slice(first), ...addresses.slice(0, first)];
    this.#rooms = [...own.map((a) => room(a, false)), ...fallback.map((a) => room(a, true))];
    this.#options = options;
  }

  /** ask returns the answer of the first room that gives one, that room, and when the request was sent. */
  async ask(path, { body, prefer, method = "POST" } = {}) {
    const start = now();
    const rank = (r) => r === prefer ? -1 : start < r.avoidUntil ? 3 : r.other ? 2 : r === this.#answers ? 0 : 1;
    const failures = [];
    for (const from of this.#rooms.map((r) => [rank(r), r]).sort((a, b) => a[0] - b[0]).map(([, r]) => r)) {
      const sent = now();
      try {
        const answer = await this.#call(from, method, path, body);
        this.#answers = from;
        return { answer, from, sent };
      } catch (error) {
        if (!error.elsewhere) throw error;
        if (!error.noWindow) this.avoid(from);
        failures.push(error);
      }
      if (now() - start >= TRIES * this.#options.timeout) break;
    }
    throw together(failures);
  }

  /** avoid asks a room only after all others, for a while. */
  avoid(from) {
    from.avoidUntil = now() + AVOID;
  }

  close() {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  async #call(from, method, path, body) {
    const { timeout, tokenFile, ca, cert, key } = this.#options;
    const name = `room at ${from.url}`;
    const headers = { "Content-Type": "application/json" };
    if (tokenFile && !from.mayHaveToken) {
      throw new MarchError("unauthenticated", `${name}: no TLS, so the token is not sent`);
    }
    const read = (file, kind) => readFile(file, "utf8").catch((error) => { // as it is now: calls are few
      throw new MarchError(kind, `${file}: ${error.message}`, 1000, { cause: error });
    });
    if (tokenFile) {
      const token = (await read(tokenFile, "unauthenticated")).trim();
      if (!/^[!-~]+$/.test(token)) throw new MarchError("unauthenticated", `${tokenFile}: no token of one word`);
      headers.Authorization = `Bearer ${token}`;
    }
    const [caPem, certPem, keyPem] = await Promise.all([ca, cert, key].map((file) => file && read(file, "invalid")));
    let status, text, after;
    try {
      ({ status, text, after } = await new Promise((resolve, reject) => {
        const request = (from.secure ? https : http).request(from.url + path, { method, headers, ca: caPem,
          cert: certPem, key: keyPem, agent: this.#agents[from.secure ? "https:" : "http:"],
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
      return JSON.parse(text);
    } catch (error) {
      throw new MarchError("internal", `${name}: its answer makes no sense: ${error.message}`);
    }
  }
}

/** room returns the address of an instance, or of several instances of one room. */
function room(address, other) {
  const url = URL.canParse?.(address) === false ? undefined : new URL(address);
  if (url === undefined || !["http:", "https:"].includes(url.protocol)) {
    throw new MarchError("invalid", `address: ${address}; allowed: http://HOST:PORT, https://HOST:PORT`);
  }
  const secure = url.protocol === "https:";
  const here = ["localhost", "[::1]"].includes(url.hostname) || url.hostname.startsWith("127.");
  return { url: url.origin, other, secure, mayHaveToken: secure || here, avoidUntil: 0 };
}
