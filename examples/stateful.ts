import { Sandbox } from "@torpor/sdk";

/** The sandbox of this conversation: made at its first turn, found again at every other, awake where it was. */
const turn = (): Promise<Sandbox> =>
  Sandbox.session({ tenant: "acme", key: "chat-42", template: "code-interpreter" });

const commit =
  "git init -q . && git add . && git -c user.name=a -c user.email=a@example.com commit -qm 'turn 1'";
const setup = "from setuptools import setup\nsetup(name='greeter', version='1.0', py_modules=['greeter'])\n";

const first = await turn();
await first.files.write("/workspace/greeter/greeter.py", "WORD = 'hello'\n");
await first.files.write("/workspace/greeter/setup.py", setup);
await first.exec(commit, { cwd: "/workspace/greeter", check: true });
await first.exec("pip install -q --no-index --no-build-isolation ./greeter", {
  cwd: "/workspace",
  check: true,
});
await first.runCode("answer = 42");
const { image } = await first.hibernate();
console.log(`turn 1 done: asleep, ${((image?.sizeBytes ?? 0) / 1e6).toFixed(0)} MB of storage and no RAM`);

const startedAt = performance.now();
const second = await turn();
console.log(`turn 2: ${second.id === first.id ? "the same" : "another"} sandbox, awake`);
console.log(`wake       ${(performance.now() - startedAt).toFixed(1)} ms`);
const log = await second.exec("git log --format=%s", { cwd: "/workspace/greeter", check: true });
console.log(`repository ${log.stdout.trim()}`);
const word = await second.exec("python3 -c 'import greeter; print(greeter.WORD)'", { check: true });
console.log(`package    ${word.stdout.trim()}`);
console.log(`variable   ${(await second.runCode("answer")).text}`);

await second.destroy(); // a chat would keep it for its next turn: asleep it costs storage alone
