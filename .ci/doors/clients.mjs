// Calls the door at REDIS_URL with ioredis and node-redis, as a service would: it connects
// with each client's defaults, counts one by one, in pipelines, in a transaction and in
// runs, and ends with status 1 if an ID comes twice or an answer is not as Redis'.
import assert from "node:assert/strict";
import { Redis } from "ioredis";
import { createClient } from "redis";

const url = process.env.REDIS_URL;
const seen = new Set();
function took(...ids) {
  for (const id of ids) {
    assert(Number.isSafeInteger(id) && !seen.has(id), `ID ${id}`);
    seen.add(id);
  }
}
const runOf = (last, n) => Array.from({ length: n }, (_, k) => last - n + 1 + k);

const io = new Redis(url, { lazyConnect: true, connectTimeout: 10000 });
await io.connect(); // ends only after INFO says that it is ready
for (let k = 0; k < 100; k++) took(await io.incr("door:test"));
took(...runOf(await io.incrby("door:test", 10), 10));
for (const results of [await io.pipeline(Array(100).fill(["incr", "door:test"])).exec(), await io.multi(Array(100).fill(["incr", "door:test"])).exec()]) {
  assert.equal(results.length, 100);
  for (const [err, id] of results) {
    assert.equal(err, null);
    took(id);
  }
}
took(...(await Promise.all(Array.from({ length: 1000 }, () => io.incr("door:test")))));
assert.equal(await io.exists("door:test"), 1);
assert.equal(await io.get("door:nosuch"), null);
await assert.rejects(io.expire("door:test", 1), /EXPIRE is not served/);
await io.quit();
console.log(`ioredis: ${seen.size} IDs`);

const node = createClient({ url });
node.on("error", (err) => {
  throw err;
});
await node.connect();
const before = seen.size;
for (let k = 0; k < 100; k++) took(await node.incr("door:test"));
took(...runOf(await node.incrBy("door:test", 10), 10));
let many = node.multi();
for (let k = 0; k < 100; k++) many = many.incr("door:test");
took(...(await many.exec()));
took(...(await Promise.all(Array.from({ length: 1000 }, () => node.incr("door:test")))));
assert.equal(await node.get("door:nosuch"), null);
await assert.rejects(node.del("door:test"), /DEL is not served/);
await node.close();
console.log(`node-redis: ${seen.size - before} IDs`);
