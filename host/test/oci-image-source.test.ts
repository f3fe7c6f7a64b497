import { expect, test } from "vitest";
import { parseImageSource } from "../src/oci/image-source.ts";

test.each(["docker-archive:/nope/image.tar", "oci:/nope/layout:latest", "/nope/image.tar"])(
  "%s, which is not there, is said to be no file on the host's machine",
  async (source) => {
    await expect(parseImageSource(source)).rejects.toMatchObject({
      code: "invalid_request",
      message: expect.stringMatching(
        /^there is no file or folder \/nope\/\S+ on the host's machine/,
      ) as string,
    });
  },
);

test("a name is no path, and is looked for elsewhere", async () => {
  expect(await parseImageSource("python:3.12")).toBeUndefined();
});
