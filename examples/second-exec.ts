import { Sandbox } from "@torpor/sdk";

await using sandbox = await Sandbox.create({ template: "code-interpreter" });

/** Runs a command, prints what it wrote and how long the round trip took. */
async function run(cmd: string): Promise<void> {
  const startedAt = performance.now();
  const { stdout } = await sandbox.exec(cmd, { check: true });
  console.log(`$ ${cmd}\n${stdout.trimEnd()}\nexec ${(performance.now() - startedAt).toFixed(1)} ms\n`);
}

await run("echo 'left by the first exec' | tee /workspace/note.txt");
await run("cat /workspace/note.txt && wc --bytes < /workspace/note.txt");
