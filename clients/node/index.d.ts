/** What a caller can do about an error. */
export type Kind =
  | "internal" // a defect
  | "invalid" // the request can never succeed as it is
  | "not_found" // there is no such tag
  | "exhausted" // the tag is at its limit
  | "refused" // an operator must act first
  | "denied" // the caller lacks the right
  | "unauthenticated" // no valid token or certificate
  | "closed" // the client was closed
  | "unavailable" // no room has IDs now, and none are held: try again
  | "too_many" // a limit of the server is reached: try again
  | "went_back" // leasing is halted: try again
  | "no_range"; // the room has no range: try again

export declare class MarchError extends Error {
  readonly kind: Kind;
  /** Whether another try may succeed: no room has IDs, or may give any, at the moment. */
  readonly temporary: boolean;
  /** How many ms to wait before another try. */
  readonly retryAfter: number;
  /** The limit of an exhausted tag; 0n where it is not known. */
  readonly limit: bigint;
}

export interface Options {
  /** URLs of instances of one room, http://HOST:PORT or https://HOST:PORT. */
  addresses: string[];
  /** URLs of other rooms, which are asked if none of addresses leases IDs. Default none. */
  fallback?: string[];
  /** How long the IDs held last at the recent rate, in ms. Default 30,000. */
  reserve?: number;
  /** The least number of IDs of a lease ahead, and that of a tag's first. Default 1,000. */
  minStep?: number;
  /** The largest number of IDs of a lease ahead: a call for more leases more. Default 1,000,000,000. */
  maxStep?: number;
  /** How long an instance may take to answer, in ms. Default 2,000. */
  timeout?: number;
  /** A file with the token to give with each call, over TLS or to this machine. It is read again for each. */
  tokenFile?: string;
  /** A file with the CAs of the servers. Default: those of Node. */
  ca?: string;
  /** Files that prove who the client is. */
  cert?: string;
  key?: string;
}

/** count IDs: first, first + step, and so on. Iterating yields each. */
export declare class Run implements Iterable<bigint> {
  readonly first: bigint;
  readonly count: number;
  readonly step: bigint;
  [Symbol.iterator](): Iterator<bigint>;
}

export interface Text {
  text: string;
  /** undefined for IDs of 80 bits, which exist only as texts. */
  id: bigint | undefined;
}

/** Issues unique IDs of any number of tags, in this process. */
export declare class Client {
  constructor(options: Options);
  /** An ID of a tag. It waits only while none is held, for some seconds at most. */
  next(tag: string): Promise<bigint>;
  /** A handle to a tag. It asks no room, and throws for a name that no tag can have. */
  tag(name: string): Tag;
  /** Drops all IDs that are held. Calls that wait end. */
  close(): void;
}

/** Issues the IDs of one tag. */
export declare class Tag {
  readonly name: string;
  /** How many IDs are held. */
  readonly held: number;
  /** An ID if one is at hand, and undefined otherwise: then await next. */
  tryNext(): bigint | undefined;
  next(): Promise<bigint>;
  /** n IDs as runs, 1 to 1,000,000,000. */
  nextN(n: number): Promise<Run[]>;
  /** An ID as a text, by the tag's format, of a room. */
  nextText(): Promise<Text>;
  /** The ID of a text of the tag, of a room. */
  parseText(text: string): Promise<bigint>;
  /** Resolves when IDs are held. */
  warm(): Promise<void>;
}
