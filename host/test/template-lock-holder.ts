// Takes a template's lock, says so and keeps it until it is killed. Arguments: templates folder, hash.
import { lockTemplate } from "../src/template/template-lock.ts";

const [templatesDir = "", hash = ""] = process.argv.slice(2);
await lockTemplate(templatesDir, hash);
console.log("locked");
setInterval(() => {}, 1000);
