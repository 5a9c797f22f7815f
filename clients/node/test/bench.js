// Measures how many IDs a second the client issues: node bench.js ADDRESS TAG, of which it takes a million, OTHER
// TAG.

import { Client } from "../src/client.js";

const [address, first, name] = process.argv.slice(2);
// As a new client begins. A busy machine is no fault.
const fresh = new Client({ addresses: [address], timeout: 60_000 });
for (let k = 0; k < 1_000_000; k++) await fresh.next(first);
fresh.close();

const ids = new Client({ addresses: [address], timeout: 60_000, minStep: 100_000_000 });
const tag = ids.tag(name);
await tag.warm();
async function best(take) {
  let most = 0;
  for (let round = 0; round < 5; round++) {
    const began = performance.now();
    await take(500_000);
    most = Math.max(most, 500_000 / (performance.now() - began) * 1000);
  }
  return most;
}
const perSecond = await best(async (n) => {
  for (let k = 0; k < n; k++) tag.tryNext() ?? await tag.next();
});
const awaitedPerSecond = await best(async (n) => {
  for (let k = 0; k < n; k++) await ids.next(name);
});
console.log(JSON.stringify({ perSecond, awaitedPerSecond }));
ids.close();
