package inventory

import (
	"bufio"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Connections are the sandbox's sockets. Loopback ones live through a sleep; external ones do not.
type Connections struct {
	Listening []Socket `json:"listening"`
	Loopback  []Socket `json:"loopback"`
	External  []Socket `json:"external"`
}

// Socket is one end of a connection, or a listener.
type Socket struct {
	Protocol string `json:"protocol"`
	Local    string `json:"local"`
	Remote   string `json:"remote,omitempty"`
	// State as ss writes it: ESTAB, TIME-WAIT, ...
	State string `json:"state,omitempty"`
}

// The agent's own port and that of the code server: their connections are the host's, and come again by themselves.
const (
	agentPort = 49983
	codePort  = 49999
)

// From include/net/tcp_states.h.
var tcpStates = map[string]string{
	"01": "ESTAB", "02": "SYN-SENT", "03": "SYN-RECV", "04": "FIN-WAIT-1", "05": "FIN-WAIT-2", "06": "TIME-WAIT",
	"07": "CLOSE", "08": "CLOSE-WAIT", "09": "LAST-ACK", "0A": "LISTEN", "0B": "CLOSING",
}

func connections(root string) Connections {
	found := Connections{Listening: []Socket{}, Loopback: []Socket{}, External: []Socket{}}
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
		file, err := os.Open(filepath.Join(base(root), "proc/net", protocol))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			found.add(protocol, strings.Fields(lines.Text()))
		}
		file.Close()
	}
	return found
}

// add sorts in one line of /proc/net: number, local, remote, state, ...
func (c *Connections) add(protocol string, fields []string) {
	if len(fields) < 4 {
		return
	}
	local, localPort, ok := parseAddress(fields[1])
	remote, remotePort, okRemote := parseAddress(fields[2])
	if !ok || !okRemote || localPort == agentPort || localPort == codePort {
		return
	}
	socket := Socket{Protocol: protocol, Local: net.JoinHostPort(local.String(), strconv.Itoa(localPort)), State: tcpStates[fields[3]]}
	var list *[]Socket
	switch {
	case strings.HasPrefix(protocol, "udp") && remotePort == 0, socket.State == "LISTEN":
		socket.State = ""
		list = &c.Listening
	case remote.IsLoopback() || local.IsLoopback() || remote.Equal(local):
		list = &c.Loopback
	default:
		list = &c.External
	}
	if remotePort != 0 {
		socket.Remote = net.JoinHostPort(remote.String(), strconv.Itoa(remotePort))
	}
	if strings.HasPrefix(protocol, "udp") {
		socket.State = ""
	}
	if len(*list) < listMax {
		*list = append(*list, socket)
	}
}

// parseAddress reads `0100007F:1F90`: words of the address in the machine's (little-endian) order, then the port.
func parseAddress(text string) (net.IP, int, bool) {
	address, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	number, portErr := strconv.ParseInt(port, 16, 32)
	if !ok || err != nil || portErr != nil || len(raw)%4 != 0 || len(raw) == 0 {
		return nil, 0, false
	}
	for word := 0; word < len(raw); word += 4 {
		raw[word], raw[word+1], raw[word+2], raw[word+3] = raw[word+3], raw[word+2], raw[word+1], raw[word]
	}
	return net.IP(raw), int(number), true
}
