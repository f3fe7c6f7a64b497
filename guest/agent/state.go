package agent

import (
	"net/http"

	"torpor/guest/inventory"
	"torpor/guest/wire"
)

// serveState answers GET /torpor/state: the sandbox's state by the six kinds.
func (a *Agent) serveState(w http.ResponseWriter, r *http.Request) {
	wire.WriteJSON(w, http.StatusOK, inventory.Take(r.Context(), "", a.startedAt))
}
