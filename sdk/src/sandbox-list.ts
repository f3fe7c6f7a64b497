import type { CallOptions } from "./call-options.ts";
import { TorporError } from "./errors.ts";
import type { QueryValue } from "./request-path.ts";
import type { SandboxState } from "./sandbox-info.ts";

/** Which sandboxes to list; all conditions must hold. */
export interface SandboxFilter extends CallOptions {
  state?: SandboxState | undefined;
  tenant?: string | undefined;
  template?: string | undefined;
  /** All of these labels. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** Sandboxes per request; default 50, at most 200. */
  pageSize?: number | undefined;
}

/** One page of a list. */
export interface Page<Item> {
  items: Item[];
  /** Gives the next page; null on the last one. */
  nextCursor: string | null;
}

/** The query of a list request. */
export function filterQuery(filter: SandboxFilter, cursor: string | undefined): Record<string, QueryValue> {
  const query: Record<string, QueryValue> = {
    state: filter.state,
    tenant: filter.tenant,
    template: filter.template,
    limit: filter.pageSize,
    cursor,
  };
  for (const [key, value] of Object.entries(filter.metadata ?? {})) query[`metadata.${key}`] = value;
  return query;
}

/** A list that is fetched page by page as it is iterated. Each iteration starts from the beginning. */
export class PagedList<Item> implements AsyncIterable<Item> {
  readonly #fetchPage: (cursor: string | undefined) => Promise<Page<Item>>;

  /** @internal */
  constructor(fetchPage: (cursor: string | undefined) => Promise<Page<Item>>) {
    this.#fetchPage = fetchPage;
  }

  /** One page: the first, or the one after `cursor` (a page's `nextCursor`). */
  page(cursor?: string): Promise<Page<Item>> {
    return this.#fetchPage(cursor);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Item, void, undefined> {
    let cursor: string | undefined;
    for (;;) {
      const page = await this.#fetchPage(cursor);
      yield* page.items;
      if (page.nextCursor === null) return;
      if (page.nextCursor === cursor) {
        throw new TorporError("the server gave the same list cursor twice: the list would never end", {
          code: "invalid_response",
        });
      }
      cursor = page.nextCursor;
    }
  }

  /** All items. */
  async toArray(): Promise<Item[]> {
    const items: Item[] = [];
    for await (const item of this) items.push(item);
    return items;
  }
}
