import { TorporError } from "./errors.ts";

/** The array in an answer `{[name]: [...]}` or `{items: [...]}`. Its elements are not checked. */
export function answeredList<Item>(answer: unknown, name: string): Item[] {
  if (typeof answer === "object" && answer !== null) {
    const list: unknown = Reflect.get(answer, name) ?? Reflect.get(answer, "items");
    if (Array.isArray(list)) return list as Item[];
  }
  throw new TorporError(
    `the server's answer has no list of ${name}: is it of the same version as this client?`,
    {
      code: "invalid_response",
    },
  );
}
