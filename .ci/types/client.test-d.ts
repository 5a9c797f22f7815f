// What a program in TypeScript writes with the client of Node.
import { Client, MarchError } from "../../clients/node/index.js";

export async function order(ids: Client): Promise<string> {
  const tag = ids.tag("order");
  try {
    const id: bigint = tag.tryNext() ?? (await tag.next());
    return String(id);
  } catch (error) {
    if (error instanceof MarchError && error.temporary) return `after ${error.retryAfter} ms`;
    throw error;
  }
}

export const ids = new Client({ addresses: ["http://127.0.0.1:7020"], reserve: 60_000 });
