import { FakeClock, silentLog } from "@torpor/base";
import { expect, test } from "vitest";
import { DenialLog } from "../src/ledger/denial-log.ts";
import type { LedgerDraft } from "../src/store/ledger-store.ts";

const KEY = { id: "key_a", account: "default", tenant: "acme" };

function open(add: (drafts: readonly LedgerDraft[]) => Promise<void>): { log: DenialLog; clock: FakeClock } {
  const clock = new FakeClock();
  const owners = { ownersOf: () => Promise.resolve(new Map()) };
  return { log: new DenialLog({ ledger: { add }, owners, clock, log: silentLog }), clock };
}

test("writes the first at once, counts those that follow, and writes them once a minute", async () => {
  const written: LedgerDraft[] = [];
  const { log, clock } = open(async (drafts) => void written.push(...drafts));
  log.note(KEY, "GET /a", "permission_denied");
  clock.advance(1_000);
  await log.flush();
  for (let times = 0; times < 1_000; times += 1) log.note(KEY, "GET /a", "permission_denied");
  clock.advance(30_000);
  await log.flush();
  expect(written.map(({ count }) => count)).toEqual([1]);
  clock.advance(30_000);
  await log.flush();
  expect(written.map(({ count }) => count)).toEqual([1, 1_000]);
  await log.close();
  expect(written).toHaveLength(2);
});

test("tells 32 routes of a key apart in a minute and counts the rest together, so that no key fills the disk", async () => {
  const written: LedgerDraft[] = [];
  const { log } = open(async (drafts) => void written.push(...drafts));
  for (let route = 0; route < 500; route += 1) log.note(KEY, `GET /${route}`, "permission_denied");
  log.note({ ...KEY, id: "key_b" }, "GET /a", "key_revoked");
  await log.close();
  expect(written).toHaveLength(34);
  expect(written.find(({ route }) => route === "(many)")).toMatchObject({ count: 468, actor: "key_a" });
});

test("keeps what cannot be written until it can", async () => {
  const written: LedgerDraft[] = [];
  let isFull = true;
  const { log } = open(async (drafts) => {
    if (isFull) throw new Error("disk is full");
    written.push(...drafts);
  });
  log.note(KEY, "GET /a", "key_expired");
  await log.flush();
  log.note(KEY, "GET /a", "key_expired");
  isFull = false;
  await log.close();
  expect(written).toMatchObject([{ count: 2, reason: "key_expired" }]);
});
