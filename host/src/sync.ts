import { open } from "node:fs/promises";

/** Makes a file or a directory durable. @throws what the file system throws */
export async function sync(path: string): Promise<void> {
  const file = await open(path, "r");
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}
