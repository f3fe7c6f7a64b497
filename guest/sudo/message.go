// Package sudo is the sandbox's sudo. gVisor honours no setuid bit, so a small client hands its descriptors, folder and
// environment to the agent over a unix socket, and the agent, which is root, starts the command.
package sudo

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// SocketPath is where the agent listens.
const SocketPath = "/run/torpor/sudo.sock"

// request is what the client asks for; its three standard descriptors come along.
type request struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"` // the caller's
	Dir  string   `json:"dir"`
	// User is a name or #uid.
	User string `json:"user"`
	// Preserve keeps the caller's variables: all, or the ones named.
	PreserveAll bool     `json:"preserve_all"`
	Preserve    []string `json:"preserve,omitempty"`
	// Set are assignments on the command line.
	Set     []string `json:"set,omitempty"`
	SetHome bool     `json:"set_home"`
	// Login and Shell run a shell, with Argv as its command if there is any.
	Login bool `json:"login"`
	Shell bool `json:"shell"`
	// Terminal says that descriptor 0 is to be the controlling terminal.
	Terminal bool `json:"terminal"`
	// Query asks only whether the caller may use sudo.
	Query bool `json:"query"`
	// Background lets the command live when the client goes.
	Background bool `json:"background"`
}

// event is what the client sends afterwards: a signal to pass on.
type event struct {
	Signal int `json:"signal,omitempty"`
}

// reply is what the server sends: at first that the command has been started, at the end its status.
type reply struct {
	Started bool   `json:"started,omitempty"`
	Done    bool   `json:"done,omitempty"`
	Status  int    `json:"status"`
	Error   string `json:"error,omitempty"`
}

// messageBytesMax bounds one message: an environment and arguments may have some MiB.
const messageBytesMax = 8 << 20

func writeMessage(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	framed := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	_, err = w.Write(append(framed, body...))
	return err
}

func readMessage(r io.Reader, into any) error {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > messageBytesMax {
		return fmt.Errorf("a message of %d bytes is over the limit of %d", size, messageBytesMax)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return err
	}
	if len(body) < int(size) {
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(body, into)
}

// Listen makes the socket, open to every user; who may use it is decided by who connects.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		listener.Close()
		return nil, err
	}
	return listener, nil
}

// askForCredentials makes the kernel add the sender's to each message, and tells the client that it may now send.
// SO_PEERCRED is not used: in gVisor it gives the credentials of the process that asks.
func askForCredentials(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var optionErr error
	if err := raw.Control(func(fd uintptr) {
		optionErr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1)
	}); err != nil {
		return err
	}
	if optionErr != nil {
		return optionErr
	}
	_, err = conn.Write([]byte{'g'})
	return err
}

// sendFiles waits for the server's go-ahead and passes descriptors with one byte.
func sendFiles(conn *net.UnixConn, fds ...int) error {
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return err
	}
	_, _, err := conn.WriteMsgUnix([]byte{'f'}, syscall.UnixRights(fds...), nil)
	return err
}

// receiveFiles takes exactly count descriptors, and who sent them.
func receiveFiles(conn *net.UnixConn, count int) (files []*os.File, sender *syscall.Ucred, err error) {
	one := make([]byte, 1)
	// Room for more descriptors than expected, so that surplus ones are seen and closed.
	control := make([]byte, syscall.CmsgSpace(4*16)+syscall.CmsgSpace(syscall.SizeofUcred))
	n, controlBytes, _, _, err := conn.ReadMsgUnix(one, control)
	if err != nil {
		return nil, nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(control[:controlBytes])
	for i := range messages {
		switch messages[i].Header.Type {
		case syscall.SCM_CREDENTIALS:
			sender, err = syscall.ParseUnixCredentials(&messages[i])
		case syscall.SCM_RIGHTS:
			var fds []int
			fds, err = syscall.ParseUnixRights(&messages[i])
			for _, fd := range fds {
				syscall.CloseOnExec(fd)
				files = append(files, os.NewFile(uintptr(fd), "passed"))
			}
		}
		if err != nil {
			break
		}
	}
	if err == nil && (n != 1 || len(files) != count || sender == nil) {
		err = fmt.Errorf("expected %d descriptors and credentials, got %d", count, len(files))
	}
	if err != nil {
		closeAll(files)
		return nil, nil, err
	}
	return files, sender, nil
}
