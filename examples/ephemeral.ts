import { Sandbox } from "@torpor/sdk";

const script = "import sys; print('Hello from Python', sys.version.split()[0])\n";

const startedAt = performance.now();
await using sandbox = await Sandbox.create({ template: "code-interpreter", ttlSeconds: 300 });
const createdAt = performance.now();
await sandbox.files.write("/workspace/task.py", script);
const writtenAt = performance.now();
const result = await sandbox.exec("python3 /workspace/task.py", { timeoutSeconds: 60, check: true });
const doneAt = performance.now();

console.log(result.stdout.trimEnd());
console.log(`create ${(createdAt - startedAt).toFixed(1)} ms`);
console.log(`write  ${(writtenAt - createdAt).toFixed(1)} ms`);
console.log(`exec   ${(doneAt - writtenAt).toFixed(1)} ms`);
// The sandbox is destroyed here, also when something above throws.
