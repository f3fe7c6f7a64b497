package service

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

const askTimeout = 2 * time.Second

func parseReadyURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() != "127.0.0.1" || u.Port() == "" {
		return nil, fmt.Errorf("ready_url %q must be http://127.0.0.1:PORT/PATH", text)
	}
	return u, nil
}

// askReady asks once whether the service answers 2xx. It speaks HTTP by hand: Go's client would add its pages to the
// memory of every sandbox for one question.
func askReady(ctx context.Context, text string) error {
	u, err := parseReadyURL(text)
	if err != nil {
		return err
	}
	dialer := net.Dialer{Timeout: askTimeout}
	conn, err := dialer.DialContext(ctx, "tcp4", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(askTimeout))
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n", u.RequestURI(), u.Host); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, 256).ReadString('\n')
	if err != nil {
		return err
	}
	if fields := strings.Fields(line); len(fields) < 2 || !strings.HasPrefix(fields[0], "HTTP/") || !strings.HasPrefix(fields[1], "2") {
		return fmt.Errorf("it answered %q", strings.TrimSpace(line))
	}
	return nil
}
