import { Scope } from "@torpor/base";
import { describe, expect, test } from "vitest";

describe("a scope", () => {
  test("releases in reverse order, waiting for each", async () => {
    const order: string[] = [];
    const scope = new Scope();
    scope.defer(() => void order.push("first acquired"));
    scope.defer(async () => {
      await Promise.resolve();
      order.push("last acquired");
    });
    await scope.close();
    expect(order).toEqual(["last acquired", "first acquired"]);
  });

  test("runs every release when some throw, and reports them together", async () => {
    const order: number[] = [];
    const scope = new Scope();
    for (const number of [1, 2, 3, 4]) {
      scope.defer(() => {
        order.push(number);
        if (number % 2 === 0) throw new Error(`release ${number}`);
      });
    }
    const failure: unknown = await scope.close().catch((error: unknown) => error);
    expect(order).toEqual([4, 3, 2, 1]);
    expect((failure as AggregateError).errors.map(String)).toEqual(["Error: release 4", "Error: release 2"]);
  });

  test("closes once: a second close joins the first", async () => {
    let releases = 0;
    const scope = new Scope();
    scope.defer(() => void (releases += 1));
    await Promise.all([scope.close(), scope.close()]);
    await scope.close();
    expect(releases).toBe(1);
  });

  test("hands everything over when moved, and keeps nothing", async () => {
    const order: string[] = [];
    const scope = new Scope();
    scope.defer(() => void order.push("resource"));
    const owner = scope.move();
    await scope.close();
    expect(order).toEqual([]);
    await owner.close();
    expect(order).toEqual(["resource"]);
  });

  test("releases at once what is acquired after it closed", async () => {
    const scope = new Scope();
    await scope.close();
    let released = false;
    scope.defer(() => void (released = true));
    await scope.close();
    expect(released).toBe(true);
  });

  test("releases what is acquired late although an earlier release failed", async () => {
    const scope = new Scope();
    scope.defer(() => {
      throw new Error("the earlier one");
    });
    await expect(scope.close()).rejects.toThrow("the earlier one");
    let released = false;
    scope.defer(() => void (released = true));
    await expect(scope.close()).rejects.toThrow("the earlier one");
    expect(released).toBe(true);
  });

  test("closes at the end of an `await using` block, also when it throws", async () => {
    let released = false;
    await expect(
      (async () => {
        await using scope = new Scope();
        scope.defer(() => void (released = true));
        throw new Error("from the block");
      })(),
    ).rejects.toThrow("from the block");
    expect(released).toBe(true);
  });
});
