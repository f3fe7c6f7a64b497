import { Sandbox } from "@torpor/sdk";

await using sandbox = await Sandbox.create({ template: "code-interpreter", ttlSeconds: 300 });

await sandbox.runCode("prices = [3, 1, 2]");
const execution = await sandbox.runCode(
  "for price in sorted(prices):\n    print('price', price)\nsum(prices)",
  {
    onStdout: (text) => process.stdout.write(text),
  },
);
console.log(`value ${execution.text}`);

const failed = await sandbox.runCode("1 / 0");
console.log(`${failed.error?.name}: ${failed.error?.value}`);

const other = await sandbox.contexts.create({ language: "python" });
const separate = await sandbox.runCode("'prices' in globals()", { context: other });
console.log(`another kernel knows the variable: ${separate.text}`);
