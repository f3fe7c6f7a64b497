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

// limitedListener accepts no more connections than it has slots.
type limitedListener struct {
	net.Listener
	slots chan struct{}
}

// Accept waits for a slot and then for a connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: conn, free: func() { <-l.slots }}, nil
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
