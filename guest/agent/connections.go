package agent

import (
	"net"
	"net/http"
	"sync"
)

type connKey struct{}

// connections knows the open ones, so that a freeze can close them: no stream may live on into a restored copy.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

func (c *connections) onState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open[conn] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
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
// so that user code cannot keep the host out by holding connections.
type limitedListener struct {
	net.Listener
	slots      chan struct{}
	localSlots chan struct{}
}

func newLimitedListener(listener net.Listener) *limitedListener {
	return &limitedListener{Listener: listener, slots: make(chan struct{}, connectionsMax), localSlots: make(chan struct{}, localConnectionsMax)}
}

// Accept waits for a connection that is within the bounds; one from inside that is not is closed.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		slots := l.slots
		if isLocal(conn) {
			slots = l.localSlots
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
