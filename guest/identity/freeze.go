package identity

import (
	"encoding/json"
	"net/http"
	"time"

	"torpor/guest/wire"
)

const (
	freezeHookLimitDefault = 10 * time.Second
	freezeHookLimitMax     = 10 * time.Minute
)

type freezeRequest struct {
	HookTimeoutMs int64 `json:"hook_timeout_ms"`
}

// ServeFreeze answers POST /torpor/freeze: hooks, then the lock. A hook that fails is reported and does not keep the
// lock off; whether to take the snapshot all the same is the host's decision.
func (i *Initializer) ServeFreeze(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		wire.WriteJSON(w, http.StatusMethodNotAllowed, map[string]string{"code": "method_not_allowed", "message": "use POST"})
		return
	}
	var q freezeRequest
	body, err := readBody(w, r)
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &q)
	}
	limit := time.Duration(q.HookTimeoutMs) * time.Millisecond
	if err != nil || q.HookTimeoutMs < 0 || limit > freezeHookLimitMax {
		wire.WriteJSON(w, http.StatusBadRequest, map[string]string{"code": "invalid_argument",
			"message": "the body must be JSON with hook_timeout_ms from 0 (10 s) to 600000"})
		return
	}
	if limit == 0 {
		limit = freezeHookLimitDefault
	}
	i.Gate.changing.Lock()
	defer i.Gate.changing.Unlock()
	if i.Gate.Locked() { // another freeze came first
		WriteLocked(w)
		return
	}
	hooks := runner{i.Reaper}.runFolder(i.Platform.path("/etc/torpor/before-freeze.d"), hookEnv(i.Gate.Identity()), limit)
	i.Gate.lock()
	i.frozenAt = time.Now()
	i.OnFrozen()
	i.CloseStreams(r)
	wire.WriteJSON(w, http.StatusOK, map[string]any{"hooks": hooks, "locked": true})
}

// WriteLocked answers a request that came while the gate is locked.
func WriteLocked(w http.ResponseWriter) {
	wire.WriteJSON(w, http.StatusLocked, map[string]string{"code": "locked", "message": "the sandbox is locked: it is being snapshotted or has not been given its identity yet"})
}
