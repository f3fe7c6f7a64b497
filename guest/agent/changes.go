package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"torpor/guest/changes"
	"torpor/guest/identity"
	"torpor/guest/process"
	"torpor/guest/wire"
)

// packLimit is how long changes may be read: a file may be a hole of any size, which is read like one of zeros.
const packLimit = 5 * time.Minute

// platformFolders are the agent's own, and of each boot: what is in them is neither packed nor taken away.
var platformFolders = []string{"/run/torpor", "/usr/local/lib/torpor"}

// Trailers of a stream of changes: one of them comes, and says whether it is whole.
const (
	packedTrailer = "X-Torpor-Packed"
	failedTrailer = "X-Torpor-Failed"
)

// serveChanges answers /torpor/changes while the gate is locked. GET stops every process and streams what the sandbox has
// changed since its template, in which nothing is newer than query since (unix seconds); what is stopped goes on with the
// next init. PUT makes a machine that has just booted, and is nobody's yet, into one with those changes, once: from then on
// the key it came with is the host's.
func (a *Agent) serveChanges(w http.ResponseWriter, r *http.Request) {
	var served bool
	switch r.Method {
	case http.MethodGet:
		if !a.gate.HasHostKey(r) {
			wire.WriteJSON(w, http.StatusForbidden, map[string]string{"code": "wrong_host_key", "message": "changes are the host's to read; header X-Torpor-Host-Key is missing or wrong"})
			return
		}
		served = a.init.WhileFrozen(func() { a.sendChanges(w, r) })
	case http.MethodPut:
		key := r.Header.Get("X-Torpor-Host-Key")
		if len(key) < identity.HostKeyMin {
			wire.WriteJSON(w, http.StatusForbidden, map[string]string{"code": "wrong_host_key", "message": "header X-Torpor-Host-Key must have at least 16 characters"})
			return
		}
		served = a.init.MakeFresh(key, func() { a.takeChanges(w, r) })
	default:
		w.Header().Set("Allow", "GET, PUT")
		http.Error(w, "use GET to read and PUT to write changes", http.StatusMethodNotAllowed)
		return
	}
	if !served {
		wire.WriteJSON(w, http.StatusConflict, map[string]string{"code": "wrong_state", "message": "changes are read of a sandbox that is frozen, and written once to one that never had an identity and in which nothing was started"})
	}
}

func (a *Agent) sendChanges(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), packLimit)
	defer cancel()
	fail := func(err error) {
		wire.WriteJSON(w, http.StatusInternalServerError, map[string]string{"code": "internal", "message": err.Error()})
	}
	since, err := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
	if err != nil {
		wire.WriteJSON(w, http.StatusBadRequest, map[string]string{"code": "invalid_argument", "message": "query parameter since must be unix seconds"})
		return
	}
	a.standstill.Continue() // of a try that led to nothing
	if a.standstill, err = process.StopAll(ctx); err != nil {
		fail(err)
		return
	}
	root, err := changes.MachineRoot(platformFolders...)
	if err != nil {
		fail(err)
		return
	}
	w.Header().Set("Trailer", packedTrailer+", "+failedTrailer)
	w.Header().Set("Content-Type", "application/octet-stream")
	packed, err := changes.Pack(ctx, w, root, time.Unix(since, 0))
	if err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			err = fmt.Errorf("reading the files took longer than %v: %w", packLimit, err)
		}
		w.Header().Set(failedTrailer, strconv.QuoteToASCII(err.Error()))
		return
	}
	told, _ := json.Marshal(packed)
	w.Header().Set(packedTrailer, string(told))
}

func (a *Agent) takeChanges(w http.ResponseWriter, r *http.Request) {
	root, err := changes.MachineRoot(platformFolders...)
	var done changes.Unpacked
	if err == nil {
		done, err = changes.Unpack(r.Body, root)
	}
	if err != nil {
		wire.WriteJSON(w, http.StatusInternalServerError, map[string]string{"code": "internal", "message": err.Error()})
		return
	}
	wire.WriteJSON(w, http.StatusOK, done)
}
