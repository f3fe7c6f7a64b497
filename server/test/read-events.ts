import type { SandboxEvent } from "@torpor/protocol";
import type { CallOptions, World } from "./world.ts";

/** What an EventSource makes of a stream: its events, and the id it would resume from. */
export class EventReader implements AsyncDisposable {
  readonly events: SandboxEvent[] = [];
  lastId: string | undefined;
  /** How the stream ended; undefined while it goes on. */
  ended: "end" | "broken" | undefined;
  /** Comments seen: heartbeats. */
  comments = 0;
  readonly #leave = new AbortController();
  readonly #reading: Promise<void>;

  private constructor(body: ReadableStream<Uint8Array>, leave: AbortController, lastId: string | undefined) {
    this.#leave = leave;
    this.lastId = lastId;
    this.#reading = this.#read(body);
  }

  static async open(
    world: Pick<World, "fetch">,
    path: string,
    { lastId, ...options }: CallOptions & { lastId?: string | undefined } = {},
  ): Promise<EventReader> {
    const leave = new AbortController();
    const response = await world.fetch("GET", path, {
      ...options,
      headers: lastId === undefined ? {} : { "last-event-id": lastId },
      signal: leave.signal,
    });
    if (response.status !== 200 || response.body === null)
      throw new Error(`${path} answered ${response.status}: ${await response.text()}`);
    return new EventReader(response.body, leave, lastId);
  }

  get types(): string[] {
    return this.events.map(({ type }) => type);
  }

  async close(): Promise<void> {
    this.#leave.abort();
    await this.#reading;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #read(body: ReadableStream<Uint8Array>): Promise<void> {
    const decoder = new TextDecoder();
    let text = "";
    try {
      for await (const chunk of body) {
        text += decoder.decode(chunk, { stream: true });
        const blocks = text.split("\n\n");
        text = blocks.pop() ?? "";
        for (const block of blocks) this.#take(block);
      }
      this.ended = "end";
    } catch {
      this.ended = "broken";
    }
  }

  #take(block: string): void {
    for (const line of block.split("\n")) {
      if (line.startsWith(":")) this.comments += 1;
      else if (line.startsWith("id: ")) this.lastId = line.slice(4);
      else if (line.startsWith("data: ")) this.events.push(JSON.parse(line.slice(6)) as SandboxEvent);
    }
  }
}
