// Package agent puts the parts together: one HTTP server, its gate and its routes.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"torpor/guest/account"
	"torpor/guest/archive"
	"torpor/guest/files"
	"torpor/guest/fsys"
	"torpor/guest/identity"
	"torpor/guest/process"
	"torpor/guest/reaper"
	"torpor/guest/service"
	"torpor/guest/spawn"
	"torpor/guest/sudo"
	"torpor/guest/wire"
)

// Version is what health checks and `torpor-guest version` tell. EnvdVersion is the protocol level E2B's clients are to assume.
const (
	Version     = "0.1.0"
	EnvdVersion = "0.6.13"
)

// Options are what may differ between a sandbox and a test.
type Options struct {
	Platform   identity.Platform
	PasswdPath string // /etc/passwd
	GroupPath  string // /etc/group
	CgroupRoot string // /sys/fs/cgroup; empty for no inner cgroup
	WarmShells int
	// DefaultUser is whose shells wait before the first init.
	DefaultUser string
	Reaper      *reaper.Reaper
}

// Agent is the server and everything behind it.
type Agent struct {
	gate      *identity.Gate
	table     *process.Table
	accounts  *account.Book
	envd      *http.ServeMux
	host      *http.ServeMux
	files     *files.Files
	init      *identity.Initializer
	startedAt time.Time
	conns     connections
	sudo      *sudo.Server
	services  *service.Supervisor
	cpu       cpuSample
	// standstill is what was stopped to be packed; guarded by what keeps init, freeze and packing apart.
	standstill *process.Standstill
}

// New wires an agent; it serves once [Agent.Serve] is called.
func New(o Options) *Agent {
	a := &Agent{gate: identity.NewGate(), accounts: account.Open(o.PasswdPath, o.GroupPath), startedAt: time.Now()}
	a.conns.open = map[net.Conn]connectionState{}
	var cgroup *spawn.UserCgroup
	if o.CgroupRoot != "" {
		cgroup = spawn.OpenUserCgroup(o.CgroupRoot)
	}
	defaults := func() process.Settings {
		if id := a.gate.Identity(); id != nil {
			return process.Settings{Env: id.Env, DefaultUser: id.DefaultUser, DefaultWorkdir: id.DefaultWorkdir}
		}
		if presets := a.init.Presets(); presets.DefaultUser != "" {
			return process.Settings{Env: presets.Env, DefaultUser: presets.DefaultUser, DefaultWorkdir: presets.DefaultWorkdir}
		}
		return process.Settings{DefaultUser: o.DefaultUser}
	}
	a.init = &identity.Initializer{Gate: a.gate, Platform: o.Platform, Reaper: o.Reaper, Accounts: a.accounts,
		SetPidsLimit: cgroup.SetPidsLimit, CloseStreams: a.conns.closeOthers, WarmUp: a.warmUp}
	a.services = &service.Supervisor{Root: o.Platform.Root, Reaper: o.Reaper, Accounts: a.accounts, Confine: cgroup.Add,
		Settings: func() service.Settings {
			d := defaults()
			return service.Settings{Env: d.Env, User: d.DefaultUser, Workdir: d.DefaultWorkdir}
		}}
	a.init.StartServices = a.services.Start
	a.init.StartLeft = func(command, user, dir string) error { return a.table.StartLeft(command, user, dir) }
	a.table = process.NewTable(o.Reaper, a.accounts, defaults, cgroup.Add)
	paths := &fsys.Paths{Accounts: a.accounts,
		DefaultUser:    func() string { return defaults().DefaultUser },
		DefaultWorkdir: func() string { return defaults().DefaultWorkdir }}
	// Not before: a login shell runs what the template says.
	a.init.KeepShells = sync.OnceFunc(func() { a.table.Shells().Keep(o.WarmShells) })
	a.init.RefitShells = func(profileMayDiffer bool) bool {
		replaced := a.table.Shells().Refit(profileMayDiffer)
		if a.services.Any() { // they are used on ports of their own
			a.table.Shells().Touch()
		}
		return replaced
	}
	a.init.OnFrozen = a.table.Freeze
	a.init.OnInit = func() { a.standstill.Continue() }
	a.init.OnUnlocked = func(isCopy, isWoken bool) {
		switch {
		case isCopy:
			a.table.Thaw(process.CopiedMachine)
		case isWoken:
			a.table.Thaw(process.WokenMachine)
		default:
			a.table.Thaw(process.SameMachine)
		}
	}

	a.files = files.New(paths, a.gate.AuthorizeFile)
	a.envd = http.NewServeMux()
	a.table.Register(a.envd)
	fsys.New(paths).Register(a.envd)
	a.envd.HandleFunc("/files/compose", a.files.ServeCompose)
	a.envd.HandleFunc("/envs", a.serveEnvs)
	a.envd.HandleFunc("/metrics", a.serveMetrics)
	a.host = http.NewServeMux()
	a.host.HandleFunc("/torpor/freeze", a.init.ServeFreeze)
	a.host.HandleFunc("/torpor/stats", a.serveStats)
	a.host.HandleFunc("/torpor/state", a.serveState)
	a.host.Handle("/torpor/archive", archive.New(paths))
	a.sudo = &sudo.Server{Reaper: o.Reaper, Accounts: a.accounts, Confine: cgroup.Add, AllowedPath: o.Platform.Root + "/etc/torpor/sudoers",
		Env:         func() map[string]string { return defaults().Env },
		DefaultUser: func() string { return defaults().DefaultUser }}
	return a
}

// ServeSudo answers the sandbox's sudo on a unix socket until the listener is closed.
func (a *Agent) ServeSudo(listener *net.UnixListener) { a.sudo.Serve(listener) }

// Bounds of the server.
const (
	headerBytesMax = 64 << 10
	connectionsMax = 4096
	// localConnectionsMax bounds those that come from inside the sandbox.
	localConnectionsMax = 512
)

// Serve answers on the listener until ctx ends; then it ends all processes it started.
func (a *Agent) Serve(ctx context.Context, listener net.Listener) error {
	// No timeouts: each is a timer per request, which costs in gVisor. Silent clients are bounded by number instead, and make
	// room for new ones.
	server := &http.Server{
		Handler:        a,
		MaxHeaderBytes: headerBytesMax,
		ConnState:      a.conns.onState,
		ConnContext:    func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:       log.New(io.Discard, "", 0), // broken connections are the clients' business
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(newLimitedListener(listener, &a.conns))
	a.services.Stop()
	a.table.KillAll()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving on %s ended: %w", listener.Addr(), err)
}

// ServeHTTP is the gate in front of every route.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if path != process.StartPath && path != "/torpor/init" && path != "/health" {
		a.table.Shells().Touch()
	}
	switch {
	case path == "/health":
		if a.gate.Locked() {
			w.Header().Set("X-Torpor-Locked", "1")
		}
		w.WriteHeader(http.StatusNoContent)
	case path == "/torpor/init":
		a.init.ServeInit(w, r)
	case path == "/torpor/prepare":
		a.init.ServePrepare(w, r)
	case path == "/torpor/changes":
		a.serveChanges(w, r)
	case a.gate.Locked():
		refuseLocked(w, r)
	case strings.HasPrefix(path, "/torpor/"):
		if !a.gate.HasHostKey(r) {
			wire.WriteJSON(w, http.StatusForbidden, map[string]string{"code": "wrong_host_key", "message": "this route is for the host alone; header X-Torpor-Host-Key is missing or wrong"})
			return
		}
		a.host.ServeHTTP(w, r)
	case path == "/files":
		a.files.ServeHTTP(w, r)
	case !a.gate.HasToken(r):
		wire.WriteError(w, wire.Errorf(wire.Unauthenticated, "unauthorized access, please provide a valid access token in header X-Access-Token"))
	default:
		a.envd.ServeHTTP(w, r)
	}
}

func refuseLocked(w http.ResponseWriter, r *http.Request) {
	contentType := r.Header.Get("Content-Type")
	unavailable := wire.Errorf(wire.Unavailable, "the sandbox is locked: it is being snapshotted or has not been given its identity yet")
	switch {
	case strings.HasPrefix(contentType, "application/connect+"):
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(wire.AppendEndStream(nil, unavailable))
	case strings.HasPrefix(r.URL.Path, "/process.") || strings.HasPrefix(r.URL.Path, "/filesystem."):
		wire.WriteError(w, unavailable)
	default:
		identity.WriteLocked(w)
	}
}

func (a *Agent) serveEnvs(w http.ResponseWriter, r *http.Request) {
	wire.WriteJSON(w, http.StatusOK, a.gate.Identity().Env)
}
