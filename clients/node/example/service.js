// An HTTP service whose orders have IDs of March: node service.js PORT ROOM...
import { createServer } from "node:http";

import { Client } from "march-id";

const [port, ...addresses] = process.argv.slice(2);
const ids = new Client({ addresses });
await ids.tag("order").warm();

createServer(async (request, response) => {
  try {
    const id = await ids.next("order");
    response.writeHead(201).end(JSON.stringify({ order: String(id) })); // JSON has no BigInt
  } catch (error) {
    response.writeHead(error.temporary ? 503 : 500).end(JSON.stringify({ error: error.message }));
  }
}).listen(Number(port), "127.0.0.1");
