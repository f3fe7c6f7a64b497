import { sendText } from "../http/answer.ts";
import { SENT } from "../http/api.ts";
import { docsPage } from "../openapi/docs-page.ts";
import { openApiDocument, type OpenApiDocument, openApiText } from "../openapi/document.ts";
import type { RouteDeps } from "./route-deps.ts";

/** The reference: as a document and as a page. */
export function addReferenceRoutes({ api }: RouteDeps): void {
  // Made at the first request: by then every route has been added.
  let made: OpenApiDocument | undefined;
  const document = (): OpenApiDocument => (made ??= openApiDocument(api.app));

  api.add(
    {
      method: "get",
      path: "/v1/openapi.json",
      tag: "operation",
      summary: "This reference as OpenAPI 3.1",
      scope: null,
      answers: { 200: { description: "The document", mediaType: "application/json" } },
    },
    async (call) => {
      sendText(call.incoming, call.outgoing, 200, openApiText(document()), {
        "content-type": "application/json",
      });
      return SENT;
    },
  );

  api.add(
    {
      method: "get",
      path: "/docs",
      tag: "operation",
      summary: "This reference as a page",
      scope: null,
      answers: { 200: { description: "The page", mediaType: "text/html" } },
    },
    async (call) => {
      sendText(call.incoming, call.outgoing, 200, docsPage(document()), {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
        "x-content-type-options": "nosniff",
      });
      return SENT;
    },
  );
}
