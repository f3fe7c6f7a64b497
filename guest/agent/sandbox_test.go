package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"torpor/guest/identity"
	"torpor/guest/reaper"
	"torpor/guest/wire"
)

// One reaper serves the whole test process, which is also made the parent of orphans, as PID 1 is.
var theReaper *reaper.Reaper

func TestMain(m *testing.M) {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		panic(errno)
	}
	theReaper = reaper.New()
	os.Exit(m.Run())
}

const (
	testToken   = "token-token-token-token"
	testHostKey = "hostkey-hostkey-hostkey"
)

// sandbox is a whole agent on a loopback port, with a folder for a machine.
type sandbox struct {
	t        *testing.T
	agent    *Agent
	url      string
	root     string // of the machine's own files
	home     string // of the user
	client   *http.Client
	mu       sync.Mutex
	hostname string
	entropy  []byte
}

func newLocked(t *testing.T) *sandbox {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &sandbox{t: t, root: root, home: filepath.Join(root, "home/user"), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	for _, dir := range []string{"home/user", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(s.home, 1000, 1000); err != nil {
		t.Fatalf("these tests need root: %v", err)
	}
	s.put("etc/passwd", "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::"+s.home+":/bin/bash\nother:x:1001:1001::/nonexistent:/bin/sh\n")
	s.put("etc/group", "root:x:0:\nuser:x:1000:\nteam:x:1500:user\n")
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + listener.Addr().String()
	s.agent = New(Options{
		Platform: identity.Platform{
			Root:        root,
			SetClock:    func(time.Time) error { return identity.ErrHostClock },
			SetHostname: func(name string) error { s.mu.Lock(); s.hostname = name; s.mu.Unlock(); return nil },
			AddEntropy:  func(seed []byte) error { s.mu.Lock(); s.entropy = seed; s.mu.Unlock(); return nil },
		},
		PasswdPath: filepath.Join(root, "etc/passwd"), GroupPath: filepath.Join(root, "etc/group"),
		WarmShells: 2, DefaultUser: "user", Reaper: theReaper,
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.agent.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.client.CloseIdleConnections()
	})
	return s
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	s := newLocked(t)
	if status, answer := s.init(nil); status != 200 {
		t.Fatalf("init: %d %v", status, answer)
	}
	return s
}

func (s *sandbox) put(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sandbox) get(name string) string {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

type object = map[string]any

func initBody() object {
	seed := make([]byte, 64)
	_, _ = rand.Read(seed)
	return object{"generation": 1, "sandbox_id": "sbx00000000000000000a", "template": "base", "now_unix_ns": time.Now().UnixNano(),
		"entropy_base64": base64.StdEncoding.EncodeToString(seed), "hostname": "box-1", "machine_id": strings.Repeat("ab", 16),
		"env": object{"GREETING": "hello"}, "access_token": testToken, "host_key": testHostKey,
		"resolv_conf": "nameserver 10.0.0.1\n", "default_user": "user"}
}

func (s *sandbox) init(change object) (int, object) {
	body := initBody()
	for k, v := range change {
		if v == nil {
			delete(body, k)
		} else {
			body[k] = v
		}
	}
	return s.call("/torpor/init", body)
}

func (s *sandbox) do(method, path string, body io.Reader, header map[string]string) *http.Response {
	s.t.Helper()
	request, err := http.NewRequest(method, s.url+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("X-Access-Token", testToken)
	request.Header.Set("X-Torpor-Host-Key", testHostKey)
	for k, v := range header {
		if v == "" {
			request.Header.Del(k)
		} else {
			request.Header.Set(k, v)
		}
	}
	response, err := s.client.Do(request)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return response
}

// fetch gives status and body.
func (s *sandbox) fetch(method, path string, body io.Reader, header map[string]string) (int, string) {
	s.t.Helper()
	response := s.do(method, path, body, header)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatalf("%s %s: reading the answer: %v", method, path, err)
	}
	return response.StatusCode, string(data)
}

func (s *sandbox) call(path string, body any) (int, object) {
	s.t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	status, text := s.fetch("POST", path, bytes.NewReader(encoded), map[string]string{"Content-Type": "application/json"})
	var answer object
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		s.t.Fatalf("%s answered %d %q", path, status, text)
	}
	return status, answer
}

// stream is an open server stream.
type stream struct {
	t        *testing.T
	response *http.Response
}

func (s *sandbox) open(path string, body object, header map[string]string) *stream {
	s.t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[string]string{"Content-Type": "application/connect+json"}
	for k, v := range header {
		all[k] = v
	}
	return &stream{s.t, s.do("POST", path, bytes.NewReader(wire.AppendEnvelope(nil, encoded)), all)}
}

func (st *stream) close() { st.response.Body.Close() }

// next gives the next message, and the stream's end as last.
func (st *stream) next() (message object, last bool, err error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(st.response.Body, header); err != nil {
		return nil, false, err
	}
	body := make([]byte, int(header[1])<<24|int(header[2])<<16|int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(st.response.Body, body); err != nil {
		return nil, false, err
	}
	if err := json.Unmarshal(body, &message); err != nil {
		return nil, false, fmt.Errorf("%q: %w", body, err)
	}
	return message, header[0]&2 != 0, nil
}

// result is what a process stream told in all.
type result struct {
	pid                 int
	stdout, stderr, pty []byte
	end, torpor, fail   object
	largest             int // data of one event
}

func (r *result) code() string {
	if r.fail == nil {
		return ""
	}
	return r.fail["code"].(string)
}

func (r *result) exit() int { return int(r.end["exitCode"].(float64)) }

// collect reads a process stream to its end.
func (st *stream) collect() *result {
	st.t.Helper()
	defer st.close()
	r := &result{}
	for {
		message, last, err := st.next()
		if err != nil {
			st.t.Fatalf("the stream broke after %+v: %v", r, err)
		}
		if last {
			r.fail, _ = message["error"].(object)
			return r
		}
		r.add(message["event"].(object))
	}
}

func (r *result) add(event object) {
	if start, ok := event["start"].(object); ok {
		r.pid = int(start["pid"].(float64))
	}
	if data, ok := event["data"].(object); ok {
		for name, into := range map[string]*[]byte{"stdout": &r.stdout, "stderr": &r.stderr, "pty": &r.pty} {
			if text, ok := data[name].(string); ok {
				piece, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					panic(err)
				}
				*into = append(*into, piece...)
				r.largest = max(r.largest, len(piece))
			}
		}
	}
	if end, ok := event["end"].(object); ok {
		r.end = end
		r.torpor, _ = end["torpor"].(object)
	}
}

func shell(command string) object {
	return object{"cmd": "/bin/bash", "args": []string{"-l", "-c", command}}
}

// exec runs a shell command with Torpor's fields; extension may be nil.
func (s *sandbox) exec(command string, extension object) *result {
	s.t.Helper()
	if extension == nil {
		extension = object{}
	}
	return s.open("/process.Process/Start", object{"process": shell(command), "torpor": extension}, nil).collect()
}

// eventually waits for a condition that another process brings about.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("after 10 s still not so: %s", what)
}

func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}
