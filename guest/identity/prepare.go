package identity

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"torpor/guest/service"
	"torpor/guest/wire"
)

// prepareRequest is the part of an identity that is nobody's yet. Every field may be left out.
type prepareRequest struct {
	EntropyBase64  wire.Bytes        `json:"entropy_base64"`
	MachineID      string            `json:"machine_id"`
	Env            map[string]string `json:"env"`
	ResolvConf     *string           `json:"resolv_conf"`
	DefaultUser    string            `json:"default_user"`
	DefaultWorkdir string            `json:"default_workdir"`
	PidsLimit      int               `json:"pids_limit"`
	// Services are started, and waited for at most ServicesTimeoutMs (0: 60 s). With ServicesMayFail one that does not come up
	// keeps nothing back: it is started again and again, as one that dies is.
	Services          []service.Spec `json:"services"`
	ServicesTimeoutMs int64          `json:"services_timeout_ms"`
	ServicesMayFail   bool           `json:"services_may_fail"`
}

// preparation is what has been done ahead for the first init of this copy.
type preparation struct {
	machineID  string
	resolvConf *string
	pidsLimit  int
	// copy says that this copy has what only copies need: entropy, keys, a look at the hooks.
	copy  bool
	hooks bool
	files openFiles
}

// HostKeyMin is the least length of a host's key, in characters.
const HostKeyMin = 16

// tmpMarker is in templates so that gVisor does not mount a tmpfs over an empty /tmp; once booted it has done its work.
const tmpMarker = "/tmp/.torpor-on-disk"

// placeholderHostname has the length of a sandbox id.
const placeholderHostname = "unleased-unleased-unleased"

// infoBytes is what an info.json is filled up to with spaces.
const infoBytes = 512

func padded(text string) string {
	return text + strings.Repeat(" ", max(0, infoBytes-len(text))) + "\n"
}

// Presets are the settings of a sandbox that has no identity yet: those of its template.
type Presets struct {
	Env            map[string]string
	DefaultUser    string
	DefaultWorkdir string
}

// Presets gives the template's settings; zero before the first prepare.
func (i *Initializer) Presets() Presets {
	i.presetsMu.Lock()
	defer i.presetsMu.Unlock()
	return i.presets
}

// ServePrepare answers POST /torpor/prepare, accepted only while locked and before any init: it does ahead what an init
// need not be waited for, since it depends on no tenant, and runs one command so that its path is paged in, unless files of a
// sandbox have come in. A waiting copy is prepared after its restore; what init then finds done it does not do again. The gate
// stays locked. The first prepare may bring a key, which init and every other must name from then on, so that nothing of the
// template, which runs from here on, can pass for the host; where files of a sandbox have come in, theirs is that key.
func (i *Initializer) ServePrepare(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code, message string) {
		wire.WriteJSON(w, status, map[string]string{"code": code, "message": message})
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		refuse(http.StatusMethodNotAllowed, "method_not_allowed", "use POST")
		return
	}
	refuseInitialized := func() {
		refuse(http.StatusConflict, "already_initialized", "only a copy that never had an identity can be prepared")
	}
	if i.Gate.Identity() != nil {
		refuseInitialized()
		return
	}
	body, err := readBody(w, r)
	i.Gate.changing.Lock()
	defer i.Gate.changing.Unlock()
	if !i.Gate.Locked() || i.Gate.Identity() != nil {
		refuseInitialized()
		return
	}
	key := r.Header.Get("X-Torpor-Host-Key")
	if last := i.Gate.lastHostKey(); last != "" && !equal(key, last) {
		refuse(http.StatusForbidden, "wrong_host_key", "header X-Torpor-Host-Key is not the key that the machine was first prepared with, or that the sandbox's files came with")
		return
	}
	var q prepareRequest
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	switch {
	case err != nil:
		refuse(http.StatusBadRequest, "invalid_argument", "the body is not the JSON expected: "+err.Error())
		return
	case q.MachineID != "" && !machineIDForm.MatchString(q.MachineID):
		refuse(http.StatusBadRequest, "invalid_argument", "field machine_id must be 32 lower-case hexadecimal digits")
		return
	case q.DefaultWorkdir != "" && !filepath.IsAbs(q.DefaultWorkdir):
		refuse(http.StatusBadRequest, "invalid_argument", "field default_workdir must be an absolute path")
		return
	}
	if i.Gate.lastHostKey() == "" && len(key) >= HostKeyMin {
		i.Gate.await(key) // before anything of the template runs
	}
	if err := i.prepare(&q); err != nil {
		refuse(http.StatusInternalServerError, "internal", err.Error())
		return
	}
	wire.WriteJSON(w, http.StatusOK, map[string]bool{"prepared": true})
}

func (i *Initializer) prepare(q *prepareRequest) error {
	i.everPrepared = true
	i.prepared.files.close()
	i.prepared = preparation{}
	_ = os.Remove(i.Platform.path(tmpMarker))
	if q.Env != nil || q.DefaultUser != "" || q.DefaultWorkdir != "" {
		i.presetsMu.Lock()
		i.presets = Presets{Env: q.Env, DefaultUser: q.DefaultUser, DefaultWorkdir: q.DefaultWorkdir}
		i.presetsMu.Unlock()
		i.RefitShells(true)
	}
	i.KeepShells()
	if len(q.Services) > 0 {
		if err := i.startServices(q); err != nil && !q.ServicesMayFail {
			return err
		}
	}
	if len(q.EntropyBase64) > 0 {
		// Init does it again with its own bytes; the pages it then needs are in memory by this.
		if _, err := i.Platform.reseed(q.EntropyBase64, 0, "", i.Presets().Env, reseedLimit); err != nil {
			return err
		}
		if err := i.Platform.AddEntropy(q.EntropyBase64); err != nil && err != ErrHostRandom {
			return err
		}
	}
	if q.MachineID != "" {
		if err := i.setMachineID(q.MachineID); err != nil {
			return err
		}
		i.prepared.machineID = q.MachineID
		// Written now, as long as they will be, so that init writes over pages that are there.
		if err := i.setHostname(placeholderHostname); err != nil {
			return err
		}
		if err := i.Platform.writeFile(infoPath, padded(""), 0o644); err != nil {
			return err
		}
		i.prepared.files = openFiles{}
		i.prepared.files.open(&i.Platform, hostnamePath, placeholderHostname+"\n")
		i.prepared.files.open(&i.Platform, hostsPath, i.hostsText(placeholderHostname))
		i.prepared.files.open(&i.Platform, infoPath, padded(""))
		if outcome, detail := i.renewSSHKeys(); outcome == failed {
			return wire.Errorf(wire.Internal, "renewing the SSH host keys failed: %s", detail)
		}
		hooks, err := os.ReadDir(i.Platform.path(restoreHooksPath))
		i.prepared.hooks = len(hooks) > 0 || err != nil && !os.IsNotExist(err)
		i.prepared.copy = len(q.EntropyBase64) > 0
	}
	if q.ResolvConf != nil {
		if err := i.Platform.writeFile("/etc/resolv.conf", *q.ResolvConf, 0o644); err != nil {
			return err
		}
		i.prepared.resolvConf = q.ResolvConf
	}
	if q.PidsLimit > 0 && i.SetPidsLimit(q.PidsLimit) == nil {
		i.prepared.pidsLimit = q.PidsLimit
	}
	i.rehearse()
	if !i.madeOfFiles { // somebody waits for that sandbox, and its profile may take as long as it likes
		i.WarmUp()
	}
	return nil
}

// servicesLimitDefault is how long services may take to come up; a cold Python in a busy machine takes seconds.
const servicesLimitDefault = 60 * time.Second

func (i *Initializer) startServices(q *prepareRequest) error {
	if err := i.Platform.makeReseedFolder(); err != nil {
		return err
	}
	limit := time.Duration(q.ServicesTimeoutMs) * time.Millisecond
	if limit <= 0 {
		limit = servicesLimitDefault
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return i.StartServices(ctx, q.Services)
}

// rehearsal is an init's body in form alone.
const rehearsal = `{"generation":1,"sandbox_id":"s","template":"t","now_unix_ns":1,"entropy_base64":"AAAA","hostname":"h","env":{"A":"b"},` +
	`"access_token":"t","host_key":"k","resolv_conf":"","default_user":"root","default_workdir":"/","pids_limit":1,"deadline_unix_ms":1,"tenant":"t"}`

// rehearse reads such a body, looks it over and writes an attestation, to nobody: init then finds its pages in memory.
func (i *Initializer) rehearse() {
	var q initRequest
	if json.Unmarshal([]byte(rehearsal), &q) == nil {
		_ = q.check(i.Accounts, &i.prepared)
		_ = q.identity()
	}
	_, _ = json.Marshal(Attestation{Generation: 1, Steps: []Step{{Name: "n", Outcome: done, Detail: prepared, DurationUs: 1}}})
}
