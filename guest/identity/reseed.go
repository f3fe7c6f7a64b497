package identity

import (
	"bufio"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ReseedFolder is where processes that keep a random generator of their own register: a listening unix socket called
// NAME.PID.sock. Each restore connects to it, sends one line of JSON and waits for the line "ok". Anybody may register,
// so the folder is sticky and open to all.
const ReseedFolder = "/run/torpor/reseed.d"

const (
	// A Python thread gets its turn within milliseconds even in a busy process; longer means native code that lets
	// nobody else run.
	reseedLimit     = 5 * time.Second
	reseedParallel  = 32
	reseedReplyMax  = 64
	reseedKeyPrefix = "torpor reseed\x00"
)

var reseedSocketForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}\.([0-9]{1,10})\.sock$`)

type reseedMessage struct {
	EntropyBase64 string            `json:"entropy_base64"`
	Generation    int64             `json:"generation"`
	SandboxID     string            `json:"sandbox_id"`
	Env           map[string]string `json:"env"`
}

// makeReseedFolder makes the folder for services and users to register in.
func (p *Platform) makeReseedFolder() error {
	dir := p.path(ReseedFolder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o777|os.ModeSticky)
}

// reseed tells every registered process that it is a copy. A socket nobody listens on is removed. A process that does
// not answer in time is killed: it cannot be told apart from its siblings in other copies, and one process is less to
// lose than the machine. An error means that one could be neither reseeded nor ended.
func (p *Platform) reseed(entropy []byte, generation int64, sandboxID string, env map[string]string, limit time.Duration) (detail string, err error) {
	dir := p.path(ReseedFolder)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var (
		group    sync.WaitGroup
		mu       sync.Mutex
		reseeded int
		killed   []string
		failures []error
		slots    = make(chan struct{}, reseedParallel)
	)
	one := func(name string, pid int) {
		message := reseedMessage{EntropyBase64: entropyFor(entropy, name), Generation: generation, SandboxID: sandboxID, Env: env}
		err := reseedOne(ctx, filepath.Join(dir, name), message)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			reseeded++
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
			_ = os.Remove(filepath.Join(dir, name)) // its process has ended
		default:
			if pid <= 1 || pid == os.Getpid() {
				failures = append(failures, fmt.Errorf("%s: %w, and it names no process that could be ended", name, err))
				return
			}
			if killErr := syscall.Kill(pid, syscall.SIGKILL); killErr != nil && killErr != syscall.ESRCH {
				failures = append(failures, fmt.Errorf("%s: %w, and ending process %d failed: %w", name, err, pid, killErr))
				return
			}
			_ = os.Remove(filepath.Join(dir, name))
			killed = append(killed, fmt.Sprintf("%s (%v)", name, err))
		}
	}
	for _, entry := range entries {
		match := reseedSocketForm.FindStringSubmatch(entry.Name())
		if match == nil || entry.Type()&os.ModeSocket == 0 {
			continue
		}
		pid, _ := strconv.Atoi(match[1])
		if len(entries) == 1 {
			one(entry.Name(), pid) // waking a thread costs more in gVisor than it saves
			break
		}
		slots <- struct{}{}
		group.Add(1)
		go func(name string) {
			defer group.Done()
			defer func() { <-slots }()
			one(name, pid)
		}(entry.Name())
	}
	group.Wait()
	if len(failures) > 0 {
		return "", errors.Join(failures...)
	}
	if reseeded > 0 {
		detail = fmt.Sprintf("%d reseeded", reseeded)
	}
	if len(killed) > 0 {
		detail = strings.TrimPrefix(detail+"; ended for not answering: "+strings.Join(killed, ", "), "; ")
	}
	return detail, nil
}

func reseedOne(ctx context.Context, path string, message reseedMessage) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return err
	}
	reply := bufio.NewReaderSize(conn, reseedReplyMax)
	answer, err := reply.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("it did not answer ok: %w", err)
	}
	if text := strings.TrimSpace(string(answer)); text != "ok" {
		return fmt.Errorf("it answered %q, not ok", text)
	}
	return nil
}

// entropyFor gives each process bytes of its own, from which nobody learns another's.
func entropyFor(entropy []byte, name string) string {
	hash := sha512.New()
	hash.Write([]byte(reseedKeyPrefix))
	hash.Write(entropy)
	hash.Write([]byte(name))
	return base64.StdEncoding.EncodeToString(hash.Sum(nil))
}
