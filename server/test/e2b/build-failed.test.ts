import { CodedError } from "@torpor/protocol";
import { expect, test } from "vitest";
import { BuildFailed, failureText } from "../../src/e2b/template/build-failed.ts";
import { GuestRefusal } from "../../src/host/answer-error.ts";

test("a build's owner is told what is wrong with the build, and of a fault inside only that there was one", () => {
  expect(failureText(new CodedError("invalid_request", "image 'a' is broken"))).toBe("image 'a' is broken");
  expect(failureText(new BuildFailed("too long"))).toBe("too long");
  expect(failureText(new GuestRefusal("internal", "exit 3", "unknown"))).toBe("unknown: exit 3");
  for (const fault of [new CodedError("internal", "find /var/lib/torpor/x failed"), new Error("/var/lib")])
    expect(failureText(fault)).toBe(
      "something failed in this server or its host; the server's log says what",
    );
});
