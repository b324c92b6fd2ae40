/*
 * A client process of compare.py --go, for node-redlock: what go/worker.go is for the locks of Go.
 *
 * `node worker.mjs LOAD` speaks the same lines; LOAD is that of contenders.py. The packages are those of
 * evidence/node. The lock is used as its documentation shows, by `using` and with its settings, and
 * the clients have no options. A timer of Node may end a little early, so a turn is 1 to 2 ms of work.
 */

import { createRequire } from "node:module";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(new URL("../evidence/node/package.json", import.meta.url));
const Client = require("ioredis");
const { default: Redlock } = require("redlock");

const SETTINGS = {
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 200,
  automaticExtensionThreshold: 500,
};
const TTL = 10_000;
const WORK = 1;
/* The time in ms that waiters may take to end. */
const PATIENCE = 2_000;

const load = JSON.parse(process.argv[2]);
const clients = load.urls.map((url) => new Client(url));
const redlock = new Redlock(clients, SETTINGS);

function now() {
  return Number(process.hrtime.bigint()) / 1e9;
}

function percentile(ordered, share) {
  return ordered[Math.min(Math.floor(ordered.length * share), ordered.length - 1)] ?? 0;
}

async function measure({ tasks, seconds }) {
  globalThis.gc?.();
  const latencies = [];
  let failed = 0;
  const began = now();
  const cpu = process.cpuUsage();
  async function work(name) {
    let before = began;
    while (before < began + seconds) {
      try {
        await redlock.using([name], TTL, async () => {});
        latencies.push((now() - before) * 1e6);
      } catch {
        failed++;
      }
      before = now();
    }
  }
  await Promise.all(Array.from({ length: tasks }, (_, number) => work(`benchmark:node:${number}`)));
  const took = now() - began;
  const { user, system } = process.cpuUsage(cpu);
  latencies.sort((one, other) => one - other);
  return {
    pairs: latencies.length,
    failed,
    took,
    cpu: (user + system) / 1e6,
    p50: percentile(latencies, 0.5),
    p99: percentile(latencies, 0.99),
  };
}

async function contend(lines) {
  const { key, waiters, seconds } = load;
  const warm = (number) => redlock.using([`warm:${process.pid}:${number}`], TTL, async () => {});
  await Promise.all(Array.from({ length: waiters }, (_, number) => warm(number)));
  globalThis.gc?.();
  console.log("ready");
  const start = Number((await lines.next()).value);
  await sleep((start - now()) * 1000);
  const cpu = process.cpuUsage();
  const turns = Array.from({ length: waiters }, () => []);
  let failed = 0;
  const ends = start + seconds;
  async function acquireRepeatedly(mine) {
    while (now() < ends) {
      try {
        await redlock.using([key], TTL, async () => {
          const began = now();
          while (now() < began + WORK / 1000) {
            await sleep(WORK);
          }
          mine.push([began, now()]);
        });
      } catch {
        failed += now() < ends;
      }
    }
  }
  const over = Promise.all(turns.map(acquireRepeatedly));
  await sleep((ends - now()) * 1000);
  const { user, system } = process.cpuUsage(cpu);
  await Promise.race([over, sleep((ends - now()) * 1000 + PATIENCE)]);
  // Written whole before the process ends: some waiters do not end by then.
  process.stdout.write(JSON.stringify({ turns, failed, cpu: (user + system) / 1e6 }) + "\n", () => process.exit(0));
}

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
if (load.key) {
  await contend(lines);
} else {
  for await (const line of lines) {
    console.log(JSON.stringify(await measure(JSON.parse(line))));
  }
  process.exit(0);
}
