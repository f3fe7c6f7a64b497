import { Sandbox } from "@torpor/sdk";

// Work that every way has in common is done once: here a data set in the memory of a warm interpreter.
await using sandbox = await Sandbox.create({ template: "code-interpreter", ttlSeconds: 600 });
await sandbox.runCode("data = [(x, 3 * x + 1) for x in range(50)]", {});

// Three guesses at the slope, each tried in a fork of its own; the best fork is kept and the rest are gone.
const best = await sandbox.explore([1, 3, 10], async (fork, slope) => {
  const { text, error } = await fork.runCode(`-sum(abs(y - (${slope} * x + 1)) for x, y in data)`);
  if (error !== null) throw new Error(error.value);
  return Number(text);
});

console.log(`best slope ${best.candidate}, scores ${best.scores.join(" ")}`);
console.log(`its fork runs on: ${best.winner.id !== sandbox.id && best.winner.info.state === "running"}`);
await best.winner.destroy();
