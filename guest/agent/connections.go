package agent

import (
	"net"
	"net/http"
	"sync"
)

type connKey struct{}

// connections knows the open ones, so that a freeze can close them: no stream may live on into a restored copy.
type connections struct {
	mu      sync.Mutex
	open    map[net.Conn]connectionState
	changes uint64
}

// connectionState says whether a connection is without a request: new, idle, or still sending its header.
type connectionState struct {
	silent bool
	// since is the number of the change that made it so.
	since uint64
}

func (c *connections) onState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	switch state {
	case http.StateNew, http.StateIdle:
		c.open[conn] = connectionState{silent: true, since: c.changes}
	case http.StateActive:
		c.open[conn] = connectionState{since: c.changes}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

// closeSilentLocal closes that connection from inside the sandbox which has been without a request for longest.
func (c *connections) closeSilentLocal() {
	var longest net.Conn
	var since uint64
	c.mu.Lock()
	for conn, state := range c.open {
		if state.silent && isLocal(conn) && (longest == nil || state.since < since) {
			longest, since = conn, state.since
		}
	}
	delete(c.open, longest) // its own end is told later
	c.mu.Unlock()
	if longest != nil {
		longest.Close()
	}
}

// closeOthers closes all connections but the one that r came by.
func (c *connections) closeOthers(r *http.Request) {
	own, _ := r.Context().Value(connKey{}).(net.Conn)
	c.mu.Lock()
	others := make([]net.Conn, 0, len(c.open))
	for conn := range c.open {
		if conn != own {
			others = append(others, conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range others {
		conn.Close()
	}
}

// limitedListener accepts no more connections than its bounds. Those from inside the sandbox have a bound of their own,
// so that user code cannot keep the host out by holding connections; nor itself by forgetting them, since the one that has
// been silent for longest makes room.
type limitedListener struct {
	net.Listener
	conns      *connections
	slots      chan struct{}
	localSlots chan struct{}
}

func newLimitedListener(listener net.Listener, conns *connections) *limitedListener {
	return &limitedListener{Listener: listener, conns: conns, slots: make(chan struct{}, connectionsMax), localSlots: make(chan struct{}, localConnectionsMax)}
}

// Accept waits for a connection that is within the bounds; one that is not is closed.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		slots := l.slots
		if isLocal(conn) {
			slots = l.localSlots
			if len(slots) == cap(slots) {
				l.conns.closeSilentLocal()
			}
		}
		select {
		case slots <- struct{}{}:
			return &limitedConn{Conn: conn, free: func() { <-slots }}, nil
		default:
			conn.Close()
		}
	}
}

func isLocal(conn net.Conn) bool {
	from, _ := conn.RemoteAddr().(*net.TCPAddr)
	to, _ := conn.LocalAddr().(*net.TCPAddr)
	return from != nil && to != nil && (from.IP.IsLoopback() || from.IP.Equal(to.IP))
}

type limitedConn struct {
	net.Conn
	once sync.Once
	free func()
}

// Close closes the connection and frees its slot.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.free)
	return err
}
