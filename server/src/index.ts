export { type RunningServer, startServer, type StartServerOptions } from "./start-server.ts";
export { type Database, type DatabaseLocation, openDatabase } from "./store/open-database.ts";
