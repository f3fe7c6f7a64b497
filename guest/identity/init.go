package identity

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
	"torpor/guest/service"
	"torpor/guest/wire"
)

// Initializer serves /torpor/init and /torpor/freeze.
type Initializer struct {
	Gate     *Gate
	Platform Platform
	Reaper   *reaper.Reaper
	Accounts *account.Book
	// KeepShells has shells wait, from the first call on.
	KeepShells func()
	// RefitShells makes the waiting shells fit the new identity, and says whether any had to be replaced.
	RefitShells func(profileMayDiffer bool) bool
	// SetPidsLimit bounds the users' processes.
	SetPidsLimit func(int) error
	// OnInit is told of an init that is about to be carried out.
	OnInit func()
	// OnFrozen is told of a freeze before the connections are closed, OnUnlocked before the gate opens again: whether the
	// machine is another than the one that was frozen, or the same in another generation.
	OnFrozen   func()
	OnUnlocked func(isCopy, isWoken bool)
	// CloseStreams closes the connections of all clients other than the one that asks.
	CloseStreams func(*http.Request)
	// StartLeft starts a shell command that nobody follows.
	StartLeft func(command, user, dir string) error
	// WarmUp runs a command the way clients do and waits until its shell is replaced.
	WarmUp func()
	// StartServices starts what the template declares and waits until it serves.
	StartServices func(context.Context, []service.Spec) error

	presetsMu sync.Mutex
	presets   Presets
	prepared  preparation // guarded by Gate.changing
	frozenAt  time.Time   // of the last freeze; guarded by Gate.changing
	hosts     []string    // lines of /etc/hosts that are not ours; guarded by Gate.changing
	// everPrepared says that what a prepare starts may run; guarded by Gate.changing.
	everPrepared bool
	// madeOfFiles says that the files of a sandbox came in; guarded by Gate.changing.
	madeOfFiles bool
	given       given // guarded by Gate.changing
}

// given is what the last init has made of a sandbox. One that wakes has it still, but for what its owner has changed since,
// which stays changed.
type given struct {
	sandboxID, hostname, machineID string
	resolvConf                     *string
	pidsLimit                      int
}

type initRequest struct {
	Generation      int64             `json:"generation"`
	SandboxID       string            `json:"sandbox_id"`
	Template        string            `json:"template"`
	NowUnixNs       int64             `json:"now_unix_ns"`
	EntropyBase64   wire.Bytes        `json:"entropy_base64"`
	Hostname        string            `json:"hostname"`
	MachineID       string            `json:"machine_id"`
	Env             map[string]string `json:"env"`
	AccessToken     string            `json:"access_token"`
	HostKey         string            `json:"host_key"`
	PreviousHostKey string            `json:"previous_host_key"`
	ResolvConf      *string           `json:"resolv_conf"`
	DefaultUser     string            `json:"default_user"`
	DefaultWorkdir  string            `json:"default_workdir"`
	PidsLimit       int               `json:"pids_limit"`
	DeadlineUnixMs  *int64            `json:"deadline_unix_ms"`
	Tenant          string            `json:"tenant"`
	// Start is run once the sandbox serves; whether it can be started is told by a step that is not mandatory.
	Start *startCommand `json:"start"`
}

// startCommand is what a template runs in each of its sandboxes.
type startCommand struct {
	Command string `json:"command"`
	User    string `json:"user"`
	Workdir string `json:"workdir"`
}

// Attestation is what an incarnation says it has done to be itself and no copy of another.
type Attestation struct {
	Generation    int64   `json:"generation"`
	Steps         []Step  `json:"steps"`
	ClockOffsetMs float64 `json:"clock_offset_ms"`
	// Complete says that no mandatory step failed; only then does the sandbox serve.
	Complete bool `json:"complete"`
}

// Step is one thing done.
type Step struct {
	Name       string `json:"name"`
	Outcome    string `json:"outcome"` // done, not_needed or failed
	Detail     string `json:"detail,omitempty"`
	DurationUs int64  `json:"duration_us"`
}

const (
	done      = "done"
	notNeeded = "not_needed"
	failed    = "failed"
	// prepared says that the step was done after the restore and before the copy was anybody's.
	prepared = "prepared"
	// asItWas says that the sandbox is the one that was frozen, and has what it would be given.
	asItWas = "as it was"
	// entropyBytes is how much each restore is given.
	entropyBytes = 64
	// clockToleranceMs is what a clock may differ before it is stepped.
	clockToleranceMs = 10
	initBytesMax     = 1 << 20
	restoreHookLimit = 10 * time.Second
	keygenLimit      = 30 * time.Second
)

// What init writes.
const (
	hostnamePath     = "/etc/hostname"
	hostsPath        = "/etc/hosts"
	infoPath         = "/run/torpor/info.json"
	restoreHooksPath = "/etc/torpor/on-restore.d"
)

var (
	hostnameForm  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`)
	machineIDForm = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

func (q *initRequest) check(accounts *account.Book, ahead *preparation) error {
	bad := func(field, why string) error {
		return wire.Errorf(wire.InvalidArgument, "field %s %s", field, why)
	}
	switch {
	case q.Generation < 1:
		return bad("generation", "must be 1 or more")
	case q.SandboxID == "" || len(q.SandboxID) > 128:
		return bad("sandbox_id", "must have 1 to 128 characters")
	case q.NowUnixNs <= 0:
		return bad("now_unix_ns", "must be the wall clock in nanoseconds since 1970")
	case len(q.EntropyBase64) != entropyBytes:
		return bad("entropy_base64", fmt.Sprintf("holds %d bytes; it must hold %d", len(q.EntropyBase64), entropyBytes))
	case !hostnameForm.MatchString(q.Hostname):
		return bad("hostname", "must be a host name of at most 63 characters")
	case q.MachineID == "" && ahead.machineID == "":
		return bad("machine_id", "may be left out only when prepare has set one")
	case q.MachineID != "" && !machineIDForm.MatchString(q.MachineID):
		return bad("machine_id", "must be 32 lower-case hexadecimal digits")
	case len(q.AccessToken) < 16:
		return bad("access_token", "must have at least 16 characters")
	case len(q.HostKey) < HostKeyMin:
		return bad("host_key", fmt.Sprintf("must have at least %d characters", HostKeyMin))
	case q.PidsLimit < 0:
		return bad("pids_limit", "must be 0 (no limit) or more")
	case q.DefaultWorkdir != "" && !filepath.IsAbs(q.DefaultWorkdir):
		return bad("default_workdir", "must be an absolute path")
	}
	for name, value := range q.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return bad("env", fmt.Sprintf("has a variable %q that cannot be set: names may not be empty or hold '=', and nothing may hold NUL", name))
		}
	}
	if q.DefaultUser == "" {
		q.DefaultUser = "user"
		if _, err := accounts.Lookup("user"); err != nil {
			q.DefaultUser = "root" // images without the platform's user
		}
	}
	if _, err := accounts.Lookup(q.DefaultUser); err != nil {
		return bad("default_user", "names a user that the sandbox does not have: "+q.DefaultUser)
	}
	return nil
}

// ServeInit answers POST /torpor/init.
func (i *Initializer) ServeInit(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	refuse := func(status int, code, message string) {
		wire.WriteJSON(w, status, map[string]string{"code": code, "message": message})
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		refuse(http.StatusMethodNotAllowed, "method_not_allowed", "use POST")
		return
	}
	refuseOpen := func() {
		refuse(http.StatusConflict, "already_initialized", "the sandbox has its identity; freeze it before giving it another")
	}
	if !i.Gate.Locked() { // code inside can reach this route: what it sends is not even read
		refuseOpen()
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		refuse(http.StatusBadRequest, "invalid_argument", "reading the request failed: "+err.Error())
		return
	}
	i.Gate.changing.Lock()
	defer i.Gate.changing.Unlock()
	if !i.Gate.Locked() {
		refuseOpen()
		return
	}
	var q initRequest
	if err := json.Unmarshal(body, &q); err != nil {
		refuse(http.StatusBadRequest, "invalid_argument", "the body is not the JSON expected: "+err.Error())
		return
	}
	if last := i.Gate.lastHostKey(); last != "" && !equal(q.PreviousHostKey, last) {
		refuse(http.StatusForbidden, "wrong_host_key", "previous_host_key is not the key that was in force when the sandbox was frozen, nor the one that its files or its first prepare came with")
		return
	}
	if err := q.check(i.Accounts, &i.prepared); err != nil {
		refuse(http.StatusBadRequest, "invalid_argument", err.Error())
		return
	}
	i.OnInit()
	attestation := i.become(&q, received)
	status := http.StatusOK
	if !attestation.Complete {
		status = http.StatusInternalServerError
	}
	wire.WriteJSON(w, status, attestation)
}

// readBody is to be called before anything is locked: whoever sends slowly keeps nobody waiting but itself.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return io.ReadAll(http.MaxBytesReader(w, r.Body, initBytesMax))
}

func (q *initRequest) identity() *Identity {
	env := map[string]string{
		"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": q.SandboxID, "E2B_TEMPLATE_ID": q.Template,
		"TORPOR_SANDBOX_ID": q.SandboxID, "TORPOR_TEMPLATE": q.Template,
	}
	for name, value := range q.Env {
		env[name] = value
	}
	return &Identity{Generation: q.Generation, SandboxID: q.SandboxID, Tenant: q.Tenant, Template: q.Template, Env: env,
		AccessToken: q.AccessToken, HostKey: q.HostKey, DefaultUser: q.DefaultUser, DefaultWorkdir: q.DefaultWorkdir}
}

// become takes the new identity on. The steps are few system calls each, so they run one after the other: waking
// threads for them costs more in gVisor than it saves.
func (i *Initializer) become(q *initRequest, received time.Time) Attestation {
	id := q.identity()
	before := i.Gate.Identity()
	restore := i.Gate.prepare(id)
	a := Attestation{Generation: q.Generation, Complete: true}
	step := func(name string, mandatory bool, do func() (outcome, detail string)) {
		began := time.Now()
		outcome, detail := do()
		a.Steps = append(a.Steps, Step{Name: name, Outcome: outcome, Detail: detail, DurationUs: time.Since(began).Microseconds()})
		if outcome == failed && mandatory {
			a.Complete = false
		}
	}
	simple := func(do func() error) func() (string, string) {
		return func() (string, string) {
			if err := do(); err != nil {
				return failed, err.Error()
			}
			return done, ""
		}
	}
	step("clock", true, func() (string, string) {
		offset := time.Duration(q.NowUnixNs - received.UnixNano())
		a.ClockOffsetMs = float64(offset.Microseconds()) / 1000
		if offset.Abs() <= clockToleranceMs*time.Millisecond {
			return notNeeded, ""
		}
		switch err := i.Platform.SetClock(time.Unix(0, q.NowUnixNs).Add(time.Since(received))); err {
		case nil:
			return done, ""
		case ErrHostClock:
			return notNeeded, err.Error()
		default:
			return failed, err.Error()
		}
	})
	step("monotonic_clock", false, func() (string, string) { return monotonicSince(i.frozenAt, received) })
	has := i.given
	woken := has.sandboxID == q.SandboxID
	i.given = given{} // until it is known what this one has made
	ahead := i.prepared
	i.prepared = preparation{} // good for one init
	gives := given{q.SandboxID, q.Hostname, cmp.Or(q.MachineID, ahead.machineID), q.ResolvConf, q.PidsLimit}
	defer func() { go ahead.files.close() }()
	step("entropy", true, func() (string, string) {
		if ahead.copy {
			return done, prepared
		}
		switch err := i.Platform.AddEntropy(q.EntropyBase64); err {
		case nil:
			return done, ""
		case ErrHostRandom:
			return done, err.Error()
		default:
			return failed, err.Error()
		}
	})
	step("hostname", true, func() (string, string) {
		if woken && q.Hostname == has.hostname {
			return notNeeded, asItWas
		}
		return simple(func() error {
			if ahead.files.write(hostnamePath, q.Hostname+"\n") && ahead.files.write(hostsPath, i.hostsText(q.Hostname)) {
				return i.Platform.SetHostname(q.Hostname)
			}
			return i.setHostname(q.Hostname)
		})()
	})
	step("machine_id", true, func() (string, string) {
		if q.MachineID == "" || q.MachineID == ahead.machineID {
			return done, prepared
		}
		if woken && q.MachineID == has.machineID {
			return notNeeded, asItWas
		}
		if err := i.setMachineID(q.MachineID); err != nil {
			return failed, err.Error()
		}
		return done, ""
	})
	step("resolv_conf", false, func() (string, string) {
		if q.ResolvConf == nil {
			return notNeeded, ""
		}
		if ahead.resolvConf != nil && *ahead.resolvConf == *q.ResolvConf {
			return done, prepared
		}
		if woken && has.resolvConf != nil && *q.ResolvConf == *has.resolvConf {
			return notNeeded, asItWas
		}
		if err := i.Platform.writeFile("/etc/resolv.conf", *q.ResolvConf, 0o644); err != nil {
			gives.resolvConf = nil
			return failed, err.Error()
		}
		return done, ""
	})
	step("pids_limit", false, func() (string, string) {
		if q.PidsLimit == 0 {
			return notNeeded, ""
		}
		if q.PidsLimit == ahead.pidsLimit {
			return done, prepared
		}
		if woken && q.PidsLimit == has.pidsLimit {
			return notNeeded, asItWas
		}
		if err := i.SetPidsLimit(q.PidsLimit); err != nil {
			gives.pidsLimit = 0
			return failed, err.Error()
		}
		return done, ""
	})
	step("info", false, simple(func() error { return i.writeInfo(q, ahead.files) }))
	step("ssh_host_keys", true, func() (string, string) {
		if ahead.copy {
			return done, prepared
		}
		return i.renewSSHKeys()
	})
	step("shells", true, func() (string, string) {
		i.KeepShells()
		if i.RefitShells(!ahead.copy || ahead.hooks) { // hooks run after this
			return done, "replaced"
		}
		return done, "reseeded at each use"
	})
	step("processes", true, func() (string, string) {
		detail, err := i.Platform.reseed(q.EntropyBase64, q.Generation, q.SandboxID, id.Env, reseedLimit)
		switch {
		case err != nil:
			return failed, err.Error()
		case detail == "":
			return notNeeded, ""
		}
		return done, detail
	})
	step("on_restore_hooks", true, func() (string, string) {
		if ahead.copy && !ahead.hooks {
			return notNeeded, ""
		}
		results := runner{i.Reaper}.runFolder(i.Platform.path(restoreHooksPath), hookEnv(id), restoreHookLimit)
		if len(results) == 0 {
			return notNeeded, ""
		}
		for _, result := range results {
			if result.Outcome != done {
				return failed, result.Name + ": " + result.Outcome + ": " + result.Detail
			}
		}
		return done, fmt.Sprintf("%d run", len(results))
	})
	if a.Complete {
		i.given = gives
		if before != nil {
			i.OnUnlocked(before.SandboxID != id.SandboxID, before.Generation != id.Generation)
		}
		i.Gate.open(id)
		if start := q.Start; start != nil {
			step("start_command", false, simple(func() error { return i.StartLeft(start.Command, start.User, start.Workdir) }))
		}
	} else {
		restore()
	}
	return a
}

// monotonicSince tells what the monotonic clock has done since the freeze: held while the machine slept, as on a suspended
// laptop, or gone on with the world's, so that all that waited for it is due at once.
func monotonicSince(frozen, now time.Time) (outcome, detail string) {
	if frozen.IsZero() {
		return notNeeded, ""
	}
	monotonic, wall := now.Sub(frozen), now.Round(0).Sub(frozen.Round(0)) // rounding drops the monotonic reading
	detail = fmt.Sprintf("%.3f s of %.3f s", monotonic.Seconds(), wall.Seconds())
	if monotonic < wall/2 {
		return done, "held: " + detail
	}
	return notNeeded, "continued: " + detail
}

func (i *Initializer) setHostname(name string) error {
	if err := i.Platform.SetHostname(name); err != nil {
		return fmt.Errorf("setting the host name to %s failed: %w", name, err)
	}
	if err := i.Platform.writeFile(hostnamePath, name+"\n", 0o644); err != nil {
		return err
	}
	i.hosts = nil // read again: the sandbox may have changed it
	return i.Platform.writeFile(hostsPath, i.hostsText(name), 0o644)
}

// hostsText is Debian's way: the machine's own name is at 127.0.1.1. Other lines are the user's.
func (i *Initializer) hostsText(name string) string {
	if i.hosts == nil {
		i.hosts = i.readHosts()
	}
	return strings.Join(append(i.hosts, "127.0.1.1\t"+name), "\n") + "\n"
}

func (i *Initializer) readHosts() []string {
	old, _ := os.ReadFile(i.Platform.path(hostsPath))
	var lines []string
	for _, line := range strings.Split(strings.TrimRight(string(old), "\n"), "\n") {
		if !strings.HasPrefix(line, "127.0.1.1") && line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		lines = []string{"127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"}
	}
	return lines[:len(lines):len(lines)]
}

func (i *Initializer) setMachineID(id string) error {
	if err := i.Platform.writeFile("/etc/machine-id", id+"\n", 0o444); err != nil {
		return err
	}
	const dbus = "/var/lib/dbus/machine-id"
	if info, err := os.Lstat(i.Platform.path(dbus)); err == nil && info.Mode().IsRegular() {
		return i.Platform.writeFile(dbus, id+"\n", 0o444)
	}
	return nil
}

func (i *Initializer) writeInfo(q *initRequest, files openFiles) error {
	info, err := json.Marshal(map[string]any{"id": q.SandboxID, "tenant": q.Tenant, "template": q.Template,
		"generation": q.Generation, "deadline_unix_ms": q.DeadlineUnixMs})
	if err != nil {
		return err
	}
	text := padded(string(info))
	if files.write(infoPath, text) {
		return nil
	}
	return i.Platform.writeFile(infoPath, text, 0o644)
}

// renewSSHKeys gives a machine that has SSH host keys new ones; with the old ones every copy could pose as every other.
func (i *Initializer) renewSSHKeys() (outcome, detail string) {
	keys, err := filepath.Glob(i.Platform.path("/etc/ssh/ssh_host_*"))
	if err != nil || len(keys) == 0 {
		return notNeeded, ""
	}
	for _, key := range keys {
		if err := os.Remove(key); err != nil {
			return failed, err.Error()
		}
	}
	argv := []string{"/usr/bin/ssh-keygen", "-A"}
	if i.Platform.Root != "" {
		argv = append(argv, "-f", i.Platform.Root)
	}
	result := runner{i.Reaper}.run(argv, hookEnv(nil), keygenLimit)
	if result.Outcome != done {
		return failed, result.Detail
	}
	return done, ""
}
