"use strict";
// A JavaScript session for the kernel: takes requests from descriptor 3 and reports on descriptor 4, one JSON object a line.
// Code runs in the main thread, through V8's inspector, which gives what a REPL needs: `let` and `const` that can be declared
// anew, and top-level await. A second thread reads the requests, so that a restore is heard of while code runs.

const fs = require("node:fs");
const inspector = require("node:inspector");
const { Socket } = require("node:net");
const { Worker, isMainThread, parentPort } = require("node:worker_threads");

const OWN = "torpor.session";
const INTERRUPTED = Symbol("interrupted");

/** Calls of one inspector session as promises. */
function poster(session) {
  return (method, parameters) =>
    new Promise((resolve, reject) =>
      session.post(method, parameters, (error, result) => (error ? reject(error) : resolve(result))),
    );
}

/** Calls functions of the main thread's own object, with a value or one of its objects. */
function ownCaller(post) {
  const own = post("Runtime.evaluate", { expression: `globalThis[Symbol.for("${OWN}")]` });
  return async (name, argument) => {
    const { result } = await post("Runtime.callFunctionOn", {
      objectId: (await own).result.objectId,
      functionDeclaration: `function (argument) { return this.${name}(argument); }`,
      arguments: [argument],
      returnByValue: true,
    });
    return result.value;
  };
}

if (isMainThread) main();
else readRequests();

function readRequests() {
  /** Also while the main thread is busy. Connected for the moment only: Node does not exit while this thread is. */
  async function restored(env) {
    const session = new inspector.Session();
    session.connectToMainThread();
    await ownCaller(poster(session))("restored", { value: env });
    session.disconnect();
  }
  require("node:readline")
    .createInterface({ input: new Socket({ fd: 3, writable: false }) }) // a file's reading could not be broken off at an exit
    .on("line", (line) => {
      const request = JSON.parse(line);
      if (request.restored) void restored(request.restored);
      // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread's port has no origin
      else parentPort.postMessage(request);
    })
    .on("close", () => process.exit());
}

function main() {
  const crypto = require("node:crypto");
  const { createRequire } = require("node:module");
  const { inspect } = require("node:util");
  const { Script } = require("node:vm");
  const reseed = require("./reseed.node");

  // A copy of this machine goes on with the state of every generator. V8's own cannot be seeded, so it is not used.
  const words = new Uint32Array(4);
  const seedRandom = () => crypto.randomFillSync(words);
  /** sfc32. */
  const next = () => {
    const t = (words[0] + words[1] + words[3]) | 0;
    words[3] += 1;
    words[0] = words[1] ^ (words[1] >>> 9);
    words[1] = words[2] + (words[2] << 3);
    words[2] = ((words[2] << 21) | (words[2] >>> 11)) + t;
    return t >>> 0;
  };
  Math.random = () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
  seedRandom();

  /** Uses up what `crypto` has drawn ahead: 128 UUIDs, and 6 KiB for randomInt (lib/internal/crypto/random.js of Node 18). */
  const dropDrawnAhead = () => {
    for (let i = 0; i < 128; i++) crypto.randomUUID();
    for (let i = 0; i < 1024; i++) crypto.randomInt(256);
  };

  /** Sets variables, or takes away those that are null, and gives back what they were. */
  const setEnv = (variables) => {
    const before = {};
    for (const [name, value] of Object.entries(variables)) {
      before[name] = process.env[name] ?? null;
      if (value === null) delete process.env[name];
      else process.env[name] = value;
    }
    return before;
  };

  /** A stack without the frames below the code. */
  const ofTheCode = (stack) => stack.split("\n    at Session.post (node:inspector")[0];

  const session = new inspector.Session();
  session.connect();
  let evaluate; // what the guarded script is to call
  Object.defineProperty(globalThis, Symbol.for(OWN), {
    value: {
      evaluate: () => evaluate(),
      restored: (env) => {
        setEnv(env);
        reseed();
        seedRandom();
        dropDrawnAhead();
      },
      show: (value) => inspect(value),
      explain: (thrown) =>
        thrown instanceof Error
          ? { name: thrown.name, value: thrown.message, traceback: ofTheCode(String(thrown.stack ?? thrown)) }
          : { name: "Uncaught", value: inspect(thrown), traceback: "" },
    },
  });
  const post = poster(session);
  const callOwn = ownCaller(post);
  // While it runs, SIGINT ends the code below it, however deep in an endless loop.
  const guarded = new Script(`globalThis[Symbol.for("${OWN}")].evaluate()`);
  let stop = () => {}; // ends the run under way as interrupted

  function evaluated(code) {
    return new Promise((resolve) => {
      stop = () => resolve(INTERRUPTED);
      const request = { expression: code, replMode: true, awaitPromise: true, objectGroup: "run" };
      evaluate = () =>
        session.post("Runtime.evaluate", request, (error, answer) => resolve(error ? INTERRUPTED : answer));
      try {
        guarded.runInThisContext({ breakOnSigint: true });
      } catch {
        stop();
      }
    });
  }

  const asArgument = ({ objectId, unserializableValue, value }) => {
    if (objectId !== undefined) return { objectId };
    return unserializableValue !== undefined ? { unserializableValue } : { value };
  };

  async function run({ id, code, env }) {
    const report = { id };
    const before = setEnv(env);
    const outcome = await evaluated(code);
    stop = () => {};
    setEnv(before);
    try {
      if (outcome === INTERRUPTED) report.error = { name: "KeyboardInterrupt", value: "", traceback: "" };
      else if (outcome.exceptionDetails)
        report.error = await callOwn("explain", asArgument(outcome.exceptionDetails.exception ?? {}));
      else if (outcome.result.type !== "undefined")
        report.text = await callOwn("show", asArgument(outcome.result));
    } catch (error) {
      report.error = { name: "Error", value: `the result cannot be shown: ${error.message}`, traceback: "" };
    }
    await post("Runtime.releaseObjectGroup", { objectGroup: "run" });
    fs.writeFileSync(4, `${JSON.stringify(report)}\n`);
  }

  globalThis.require = createRequire(`${process.cwd()}/`);
  for (const event of ["uncaughtException", "unhandledRejection"])
    process.on(event, (thrown) => console.error("Uncaught", thrown));
  process.on("SIGINT", () => stop());
  let turn = Promise.resolve();
  new Worker(__filename)
    .on("message", (request) => {
      turn = turn.then(() => run(request));
    })
    .once("exit", () => process.exit());
}
