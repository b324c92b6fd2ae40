/*
 * One client process of a run that uses node-redlock: what `worker.py` is for the others.
 *
 * `node worker.mjs JOB NAME` does the same work by the same files and signals, and writes the
 * same history. The environment's BOOTTIME_OFFSET is CLOCK_BOOTTIME minus CLOCK_MONOTONIC in
 * ns: Node reads only the latter. Both differ by the time for which the machine was suspended,
 * so the offset stays the same during a run.
 *
 * The lock is used as its documentation shows: `using` extends it, and its signal is looked at
 * after each wait. The settings are those of the documentation, too, and so are the clients,
 * without options. A command then waits for its reply as long as it takes, but a decision waits
 * for a quorum of votes for or against only. A `commandTimeout` of 200 ms made no difference.
 */

import fs from "node:fs";
import path from "node:path";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import Client from "ioredis";
import Redlock, { ExecutionError } from "redlock";

const SETTINGS = {
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 200,
  automaticExtensionThreshold: 500,
};
/* Seconds before the end after which no task begins to wait for a lock. */
const LEAST_LEFT = 0.2;
const MS = 1_000_000n;

const offset = BigInt(process.env.BOOTTIME_OFFSET);

function now() {
  return process.hrtime.bigint() + offset;
}

function encode(event) {
  // Instants are longer than the integers that a double holds exactly.
  const text = JSON.stringify(event, (_, value) =>
    typeof value === "bigint" ? `<${value}>` : value
  );
  return text.replace(/"<(\d+)>"/g, "$1");
}

/* Appends events to the history; each line is one write, which outlives a SIGKILL. */
class Recorder {
  constructor(folder, name) {
    const { O_WRONLY, O_CREAT, O_EXCL, O_APPEND } = fs.constants;
    const flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND;
    this.file = fs.openSync(path.join(folder, `${name}.jsonl`), flags, 0o644);
  }

  record(event) {
    fs.writeSync(this.file, encode(event) + "\n");
  }
}

/* The operations of one task. */
class Operations {
  constructor(recorder, client) {
    this.recorder = recorder;
    this.client = client;
    this.number = 0;
  }

  event(at, op, what, how, facts) {
    this.recorder.record({ at, client: this.client, op, what, how, ...facts });
  }

  /* Records that an operation begins, and returns a function that records its end. */
  invoke(what, facts) {
    const op = this.number++;
    this.event(now(), op, what, "invoke", facts);
    return (how, more) => this.event(now(), op, what, how, more);
  }

  observe(at, what, facts) {
    this.event(at, this.number++, what, "ok", facts);
  }
}

/*
 * Notes the expiration of each lock: `using` does not show it to its routine. An extension
 * replaces the lock by one with the same value.
 */
class NotedRedlock extends Redlock {
  expirations = new Map();

  async acquire(resources, duration, settings) {
    const lock = await super.acquire(resources, duration, settings);
    this.acquired = lock;
    return this.note(lock);
  }

  async extend(existing, duration, settings) {
    return this.note(await super.extend(existing, duration, settings));
  }

  async release(lock, settings) {
    this.expirations.delete(lock.value);
    return await super.release(lock, settings);
  }

  note(lock) {
    this.expirations.set(lock.value, lock.expiration);
    return lock;
  }

  /* Returns the instant up to which the lock with this value is promised. */
  until(value) {
    const expiration = this.expirations.get(value) ?? 0;
    const left = BigInt(Math.floor(expiration - Date.now())) * MS;
    const until = now() + left;
    return until > 0n ? until : 0n;
  }
}

/* Returns a function for random numbers of [0, 1), the same for the same text. */
function seeded(text) {
  let state = 0x811c9dc5;
  for (const char of text) {
    state = Math.imul(state ^ char.codePointAt(0), 0x01000193);
  }
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

class Worker {
  constructor(job, name) {
    this.job = job;
    this.name = name;
    this.recorder = new Recorder(job.folder, name);
    this.store = new Client(job.store);
    this.clients = job.urls.map((url) => new Client(url));
    this.clients.forEach((client) => client.on("error", () => {}));
    this.until = 0n;
  }

  secondsLeft() {
    return Number(this.until - now()) / 1e9;
  }

  async run() {
    // A manager of its own for each task: `acquired` is then that of the task.
    const redlocks = Array.from(
      { length: this.job.tasks },
      () => new NotedRedlock(this.clients, SETTINGS)
    );
    await this.getReady(redlocks[0]);
    await Promise.all(redlocks.map((redlock, number) => new Task(this, redlock, number).run()));
  }

  async getReady(redlock) {
    const ends = now() + 60_000n * MS;
    for (;;) {
      try {
        await redlock.using([`ready:${this.name}:0`], this.job.ttl, async () => {});
        break;
      } catch (error) {
        if (now() > ends) {
          throw error;
        }
      }
    }
    fs.writeFileSync(path.join(this.job.folder, `${this.name}.ready`), "");
    const start = path.join(this.job.folder, "until");
    let text = "";
    while (text === "") {
      await sleep(5);
      text = fs.existsSync(start) ? fs.readFileSync(start, "utf8").trim() : "";
    }
    this.until = BigInt(text);
  }
}

/* One client: it does one operation at a time. */
class Task {
  constructor(worker, redlock, number) {
    this.worker = worker;
    this.job = worker.job;
    this.redlock = redlock;
    const name = `${worker.name}/${number}`;
    this.operations = new Operations(worker.recorder, name);
    this.random = seeded(`${this.job.seed} ${name}`);
    this.key = this.job.keys[number % this.job.keys.length];
  }

  uniform([least, most]) {
    return least + this.random() * (most - least);
  }

  async run() {
    let left;
    while ((left = this.worker.secondsLeft()) > LEAST_LEFT) {
      await this.acquire(Math.min(this.job.wait, Math.floor(left * 1000)));
    }
  }

  async acquire(wait) {
    const { ttl } = this.job;
    const facts = { keys: [this.key], fair: false, fencing: false, ttl, wait };
    const acquired = this.operations.invoke("acquire", facts);
    const ends = now() + BigInt(wait) * MS;
    // It has a number of attempts instead of a time to wait, so it is called again.
    for (;;) {
      let section;
      try {
        await this.redlock.using([this.key], ttl, async (signal) => {
          section = new Section(this, this.redlock.acquired.value, signal, acquired);
          await section.run();
        });
        section.ended("ok", {});
        return;
      } catch (error) {
        const why = `${error.name}: ${error.message}`;
        if (section?.releasing) {
          section.ended("fail", { why });
          return;
        }
        if (section || !(error instanceof ExecutionError)) {
          throw error;
        }
        if (now() > ends) {
          acquired("fail", { why });
          await sleep(20);
          return;
        }
      }
    }
  }
}

/* What one client does with one lease. */
class Section {
  constructor(task, value, signal, acquired) {
    this.task = task;
    this.job = task.job;
    this.operations = task.operations;
    this.value = value;
    this.signal = signal;
    this.lease = randomBytes(8).toString("hex");
    this.over = false;
    this.releasing = null;
    acquired("ok", { lease: this.lease, until: task.redlock.until(value), token: null });
  }

  async run() {
    const { job, task } = this;
    let seconds = task.uniform(job.body);
    if (job.auto_extend && task.random() < job.long) {
      seconds = (task.uniform([1.2, 2.2]) * job.ttl) / 1000;
    }
    const counter = `counter:${task.key}`;
    const value = Number((await task.worker.store.get(counter)) ?? 0) + 1;
    if ((await this.works(seconds)) && this.isValid()) {
      const added = this.operations.invoke("add", { key: task.key });
      await task.worker.store.set(counter, value);
      added("ok", { key: task.key, value });
    }
    this.releasing = this.operations.invoke("release", { lease: this.lease });
  }

  /* Called when `using` has ended, which releases the lock after the routine. */
  ended(how, facts) {
    this.releasing(how, { lease: this.lease, ...facts });
  }

  /* Waits, and looks at the signal now and then; returns whether it is silent in the end. */
  async works(seconds) {
    const ends = now() + BigInt(Math.round(seconds * 1e9));
    let left;
    while ((left = Number(ends - now()) / 1e6) > 0 && !this.over) {
      await sleep(Math.min(left, this.job.ttl / 5));
      if (this.job.checks && left > this.job.ttl / 5) {
        this.isValid();
      }
    }
    return this.isValid();
  }

  isValid() {
    if (this.over || !this.job.checks) {
      return !this.over;
    }
    const at = now();
    if (this.signal.aborted) {
      this.over = true;
      const why = `${this.signal.error.name}: ${this.signal.error.message}`;
      this.operations.observe(at, "lost", { lease: this.lease, why });
      return false;
    }
    const until = this.task.redlock.until(this.value);
    if (until >= at) {
      this.operations.observe(at, "held", { lease: this.lease, until });
    }
    return true;
  }
}

const [jobFile, name] = process.argv.slice(2);
const job = JSON.parse(fs.readFileSync(jobFile, "utf8"));
process.on("SIGUSR1", () => {
  // Blocks the event loop.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, job.stall * 1000);
});
await new Worker(job, name).run();
process.exit(0);
