// Package identity gives each incarnation of a sandbox its own identity. A snapshot is taken with the gate locked; each
// copy restored from it is told by init who it is, and attests what it did about it, before it serves anybody.
package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strconv"
	"sync"
	"time"

	"torpor/guest/wire"
)

// Identity is who the sandbox is in one incarnation.
type Identity struct {
	Generation     int64
	SandboxID      string
	Tenant         string
	Template       string
	Env            map[string]string
	AccessToken    string
	HostKey        string
	DefaultUser    string
	DefaultWorkdir string
}

// Gate is locked or open. It starts locked, without an identity.
type Gate struct {
	mu       sync.RWMutex
	locked   bool
	identity *Identity
	// awaited is the key of the host that booted this machine, which is nobody's yet: code of its template, or of the sandbox
	// whose files came in, may run before the host says whose it is, and must not say so itself.
	awaited string
	// changing is held by the one init or freeze under way.
	changing sync.Mutex
}

// NewGate makes a locked gate.
func NewGate() *Gate { return &Gate{locked: true} }

// Locked says whether only init is answered.
func (g *Gate) Locked() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.locked
}

// Identity is the one in force, or, while frozen, the last; nil before the first init. It must not be changed.
func (g *Gate) Identity() *Identity {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.identity
}

func (g *Gate) open(identity *Identity) {
	g.mu.Lock()
	g.identity, g.locked, g.awaited = identity, false, ""
	g.mu.Unlock()
}

// prepare lets steps of an init under way see the new identity while the gate is still locked.
func (g *Gate) prepare(identity *Identity) (restore func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.identity
	g.identity = identity
	return func() {
		g.mu.Lock()
		g.identity = before
		g.mu.Unlock()
	}
}

func (g *Gate) lock() {
	g.mu.Lock()
	g.locked = true
	g.mu.Unlock()
}

// WhileFrozen runs act of a locked sandbox that has been somebody's, and keeps init and freeze waiting meanwhile. It says
// whether it did.
func (i *Initializer) WhileFrozen(act func()) bool {
	i.Gate.changing.Lock()
	defer i.Gate.changing.Unlock()
	if !i.Gate.Locked() || i.Gate.Identity() == nil {
		return false
	}
	act()
	return true
}

// MakeFresh runs act of a machine that never had an identity, was not prepared, and has not been made into anything, so that
// nothing of a sandbox runs in it. From before that on it is prepared and initialized with hostKey alone. It says whether it
// ran act.
func (i *Initializer) MakeFresh(hostKey string, act func()) bool {
	i.Gate.changing.Lock()
	defer i.Gate.changing.Unlock()
	if !i.Gate.Locked() || i.Gate.Identity() != nil || i.everPrepared || i.Gate.lastHostKey() != "" {
		return false
	}
	i.Gate.await(hostKey)
	i.madeOfFiles = true
	act()
	return true
}

// await is for a machine that awaits no key yet.
func (g *Gate) await(hostKey string) {
	g.mu.Lock()
	g.awaited = hostKey
	g.mu.Unlock()
}

// lastHostKey is the one that the next init must name; empty for a machine that any init makes somebody's.
func (g *Gate) lastHostKey() string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.identity != nil {
		return g.identity.HostKey
	}
	return g.awaited
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// HasToken says whether a request carries the access token.
func (g *Gate) HasToken(r *http.Request) bool {
	id := g.Identity()
	return id != nil && equal(r.Header.Get("X-Access-Token"), id.AccessToken)
}

// HasHostKey says whether a request comes from the host.
func (g *Gate) HasHostKey(r *http.Request) bool {
	id := g.Identity()
	return id != nil && equal(r.Header.Get("X-Torpor-Host-Key"), id.HostKey)
}

// AuthorizeFile lets a request for /files pass by token or by a signed URL. Errors: unauthenticated.
func (g *Gate) AuthorizeFile(r *http.Request, operation string) error {
	if r.Header.Get("X-Access-Token") != "" {
		if g.HasToken(r) {
			return nil
		}
		return wire.Errorf(wire.Unauthenticated, "access token present in header but does not match")
	}
	query := r.URL.Query()
	signature := query.Get("signature")
	if signature == "" {
		return wire.Errorf(wire.Unauthenticated, "missing signature query parameter")
	}
	id := g.Identity()
	if id == nil {
		return wire.Errorf(wire.Unauthenticated, "invalid signature")
	}
	expiration := query.Get("signature_expiration")
	if !equal(signature, Sign(query.Get("path"), operation, query.Get("username"), id.AccessToken, expiration)) {
		return wire.Errorf(wire.Unauthenticated, "invalid signature")
	}
	if expiration != "" {
		at, err := strconv.ParseInt(expiration, 10, 64)
		if err != nil || time.Now().Unix() > at {
			return wire.Errorf(wire.Unauthenticated, "signature is already expired")
		}
	}
	return nil
}

// Sign is E2B's signature of a file URL. path and user are as the client typed them; expiration is unix seconds or empty.
func Sign(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
