// What a program in TypeScript writes with the types that openapi-typescript makes of a room's document.
import type { components, paths } from "./room.js";

type Lease = paths["/v1/tags/{tag}/lease"]["post"];
type Next = NonNullable<paths["/v1/tags/{tag}/next"]["post"]>;

export const lease: Lease["requestBody"]["content"]["application/json"] = { count: "1000" };
export const next: NonNullable<Next["requestBody"]>["content"]["application/json"] = { count: "5", contiguous: true };

// An answer has its fields, and IDs are texts.
export function ends(answer: Lease["responses"][200]["content"]["application/json"]): bigint {
  return answer.segment === null ? 0n : BigInt(answer.segment.first) + BigInt(answer.limit);
}

export function firsts(answer: Next["responses"][200]["content"]["application/json"]): string[] {
  return (answer.runs ?? []).map((run) => run.first);
}

export const retries = (error: components["schemas"]["Error"]): boolean =>
  ["unavailable", "too_many", "went_back", "no_range"].includes(error.reason ?? error.code);

// @ts-expect-error: a lease has a count
export const none: Lease["requestBody"]["content"]["application/json"] = {};
