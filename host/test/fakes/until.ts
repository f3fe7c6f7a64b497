/** Waits for what goes on in the background. @throws Error after 5 s, naming the condition */
export async function until(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + 5000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`waited too long for ${condition.toString()}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
