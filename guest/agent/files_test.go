package agent

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"torpor/guest/identity"
)

var octets = map[string]string{"Content-Type": "application/octet-stream"}

func filesURL(path string) string { return "/files?path=" + url.QueryEscape(path) }

func (s *sandbox) leftovers(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, ".torpor-*"))
	return found
}

func TestUploadAndDownload(t *testing.T) {
	s := newSandbox(t)
	for name, content := range map[string]string{"empty": "", "text": "hello", "binary": "\x00\xff\xfe\r\n", "big": strings.Repeat("0123456789abcdef", 200_000)} {
		status, answer := s.fetch("POST", filesURL("new dir/"+name), strings.NewReader(content), octets)
		want := fmt.Sprintf(`[{"name":%q,"path":%q,"type":"file"}]`, name, s.home+"/new dir/"+name)
		if status != 200 || answer != want {
			t.Errorf("%s: %d %s", name, status, answer)
		}
		response := s.do("GET", filesURL("~/new dir/"+name), nil, map[string]string{"Accept-Encoding": "identity"})
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if string(body) != content || response.ContentLength != int64(len(content)) || response.Header.Get("Content-Disposition") != "inline; filename="+name {
			t.Errorf("%s: %d bytes, %v", name, len(body), response.Header)
		}
		zipped := s.do("GET", filesURL("new dir/"+name), nil, map[string]string{"Accept-Encoding": "gzip"})
		var reader io.Reader = zipped.Body
		if content != "" {
			z, err := gzip.NewReader(zipped.Body)
			if err != nil || zipped.Header.Get("Content-Encoding") != "gzip" {
				t.Fatalf("%s: %v %v", name, err, zipped.Header)
			}
			reader = z
		}
		if body, err := io.ReadAll(reader); err != nil || string(body) != content {
			t.Errorf("%s by gzip: %d bytes, %v", name, len(body), err)
		}
		zipped.Body.Close()
	}
	for _, path := range []string{"new dir", "new dir/text"} {
		info, err := os.Stat(filepath.Join(s.home, path))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1000 || st.Gid != 1000 || info.Mode().Perm() != map[bool]os.FileMode{true: 0o755, false: 0o644}[info.IsDir()] {
			t.Errorf("%s: uid %d, mode %v", path, st.Uid, info.Mode())
		}
	}
	response := s.do("GET", filesURL("new dir/big"), nil, map[string]string{"Range": "bytes=16-19"})
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if response.StatusCode != 206 || string(body) != "0123" {
		t.Errorf("range: %d %q", response.StatusCode, body)
	}
	if status, _ := s.fetch("GET", filesURL("new dir/text"), nil, map[string]string{"Accept-Encoding": "br, identity;q=0"}); status != 406 {
		t.Errorf("no acceptable encoding: %d", status)
	}
}

func TestUploadForms(t *testing.T) {
	s := newSandbox(t)
	form := func(names ...string) (io.Reader, map[string]string) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		_ = w.WriteField("note", "ignored")
		for _, name := range names {
			part, err := w.CreateFormFile("file", name)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(part, "content of "+name)
		}
		w.Close()
		return &body, map[string]string{"Content-Type": w.FormDataContentType()}
	}
	body, header := form(s.home+"/a/one", "two")
	if status, answer := s.fetch("POST", "/files", body, header); status != 200 || strings.Count(answer, `"path"`) != 2 {
		t.Errorf("%d %s", status, answer)
	}
	if got := s.get("home/user/a/one") + s.get("home/user/two"); got != "content of "+s.home+"/a/onecontent of two" {
		t.Errorf("%q", got)
	}
	body, header = form("x")
	if status, answer := s.fetch("POST", filesURL("renamed"), body, header); status != 200 || s.get("home/user/renamed") != "content of x" {
		t.Errorf("%d %s", status, answer)
	}
	body, header = form("x", "y")
	if status, _ := s.fetch("POST", filesURL("renamed"), body, header); status != 400 {
		t.Errorf("a path for two files: %d", status)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, "unzipped")
	z.Close()
	if status, answer := s.fetch("POST", filesURL("z"), &zipped, map[string]string{"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}); status != 200 || s.get("home/user/z") != "unzipped" {
		t.Errorf("%d %s", status, answer)
	}
	for name, header := range map[string]map[string]string{
		"no type":          {},
		"unknown type":     {"Content-Type": "text/plain"},
		"broken boundary":  {"Content-Type": "multipart/form-data"},
		"broken gzip":      {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"},
		"too much metadat": {"Content-Type": "application/octet-stream", "X-Metadata-A": strings.Repeat("x", 5000)},
	} {
		if status, answer := s.fetch("POST", filesURL("bad"), strings.NewReader("x"), header); status != 400 {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if left := s.leftovers(s.home); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOverwritingKeepsModeOwnerAndLinks(t *testing.T) {
	s := newSandbox(t)
	script := filepath.Join(s.home, "script")
	s.put("home/user/script", "old")
	if err := os.Chmod(script, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(script, 1001, 1001); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.home, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "script", "d/up": "../script", "dangling": "made-by-link"} {
		if err := os.Symlink(to, filepath.Join(s.home, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"script", "link", "d/up"} {
		if status, answer := s.fetch("POST", filesURL(name), strings.NewReader("by "+name), octets); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		info, err := os.Stat(script)
		if err != nil {
			t.Fatal(err)
		}
		if s.get("home/user/script") != "by "+name || info.Mode().Perm() != 0o750 || info.Sys().(*syscall.Stat_t).Uid != 1001 {
			t.Errorf("%s: %q %v", name, s.get("home/user/script"), info.Mode())
		}
	}
	if status, _ := s.fetch("POST", filesURL("dangling"), strings.NewReader("new"), octets); status != 200 || s.get("home/user/made-by-link") != "new" {
		t.Errorf("through a dangling link: %d", status)
	}
}

func TestCutOffUploadLeavesTheOldFile(t *testing.T) {
	s := newSandbox(t)
	s.put("home/user/file", "old and whole")
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /files?path=file HTTP/1.1\r\nHost: x\r\nX-Access-Token: %s\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n", testToken)
	_, _ = conn.Write(bytes.Repeat([]byte("new"), 50_000))
	eventually(t, "the upload has begun", func() bool { return len(s.leftovers(s.home)) == 1 })
	conn.Close()
	eventually(t, "the part is gone", func() bool { return len(s.leftovers(s.home)) == 0 })
	if got := s.get("home/user/file"); got != "old and whole" {
		t.Errorf("%d bytes: %.20q", len(got), got)
	}
}

func TestPathsThatAreNoFiles(t *testing.T) {
	s := newSandbox(t)
	if err := syscall.Mkfifo(filepath.Join(s.home, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]string{{"loop-a", "loop-b"}, {"loop-b", "loop-a"}} {
		if err := os.Symlink(pair[1], filepath.Join(s.home, pair[0])); err != nil {
			t.Fatal(err)
		}
	}
	socket, err := net.Listen("unix", filepath.Join(s.home, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	s.put("home/user/file", "x")
	cases := []struct {
		path      string
		get, post int
	}{
		{s.home, 400, 400}, {"fifo", 400, 400}, {"/dev/zero", 400, 400}, {"/dev/tty", 400, 400}, {"socket", 400, 400}, {"loop-a", 400, 400}, {"loop-a/x", 400, 400},
		{"file/below", 400, 400}, {"a\x00b", 400, 400}, {strings.Repeat("x/", 2500), 400, 400}, {strings.Repeat("x", 300), 400, 400}, {"~other/x", 400, 400},
		{"missing", 404, 200}, {"new/", 404, 400}, {"line\nbreak", 404, 200},
	}
	for _, c := range cases {
		if status, answer := s.fetch("GET", filesURL(c.path), nil, nil); status != c.get {
			t.Errorf("GET %.30q: %d %.200s", c.path, status, answer)
		}
		if status, answer := s.fetch("POST", filesURL(c.path), strings.NewReader("y"), octets); status != c.post {
			t.Errorf("POST %.30q: %d %.200s", c.path, status, answer)
		}
	}
	if status, answer := s.fetch("GET", filesURL("missing-file"), nil, nil); status != 404 || answer != `{"code":404,"message":"path '`+s.home+`/missing-file' does not exist"}` {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := s.fetch("GET", filesURL("/proc/self/status"), nil, nil); status != 200 || !strings.Contains(answer, "VmRSS") {
		t.Errorf("/proc: %d %.100q", status, answer)
	}
	if status, _ := s.fetch("GET", filesURL("x")+"&username=ghost", nil, nil); status != 401 {
		t.Errorf("unknown user: %d", status)
	}
}

func TestFullDiskIsToldAsSuch(t *testing.T) {
	s := newSandbox(t)
	small := filepath.Join(s.home, "small")
	if err := os.Mkdir(small, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Unmount(small, 0) }()
	if err := os.WriteFile(small+"/file", []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if status, answer := s.fetch("POST", filesURL("small/file"), strings.NewReader(strings.Repeat("x", 1<<20)), octets); status != 507 {
		t.Errorf("%d %s", status, answer)
	}
	if got := s.get("home/user/small/file"); got != "old" {
		t.Errorf("%.20q", got)
	}
	if left := s.leftovers(small); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	tar := tarOf(t, tarEntry{name: "big", content: strings.Repeat("x", 1<<20)})
	if status, answer := s.fetch("PUT", "/torpor/archive?path=small", tar, nil); status != 507 || !strings.Contains(answer, `"written"`) {
		t.Errorf("archive: %d %s", status, answer)
	}
}

func TestMetadataOfFiles(t *testing.T) {
	s := newSandbox(t)
	probe := filepath.Join(s.home, "probe")
	s.put("home/user/probe", "")
	if err := syscall.Setxattr(probe, "user.probe", []byte("1"), 0); err != nil {
		// Not every file system has them; then the agent must say so and store nothing.
		if status, _ := s.fetch("POST", filesURL("m"), strings.NewReader("x"), map[string]string{"Content-Type": "application/octet-stream", "X-Metadata-Kind": "a"}); status != 400 {
			t.Errorf("%d", status)
		}
		return
	}
	for _, value := range []string{"first", "second"} {
		if status, answer := s.fetch("POST", filesURL("m"), strings.NewReader("x"), map[string]string{"Content-Type": "application/octet-stream", "X-Metadata-" + value: value}); status != 200 || !strings.Contains(answer, `"metadata":{"`+value+`":"`+value+`"}`) {
			t.Errorf("%d %s", status, answer)
		}
	}
	_, answer := s.call("/filesystem.Filesystem/Stat", object{"path": "m"})
	if m := answer["entry"].(object)["metadata"]; fmt.Sprint(m) != "map[second:second]" {
		t.Errorf("%v", m)
	}
}

func TestSignedURLs(t *testing.T) {
	s := newSandbox(t)
	s.put("home/user/hello.txt", "signed")
	signed := func(op, user, expires string) string {
		q := url.Values{"path": {"hello.txt"}, "signature": {identity.Sign("hello.txt", op, user, testToken, expires)}}
		if user != "" {
			q.Set("username", user)
		}
		if expires != "" {
			q.Set("signature_expiration", expires)
		}
		return "/files?" + q.Encode()
	}
	future, past := fmt.Sprint(time.Now().Unix()+60), fmt.Sprint(time.Now().Unix()-60)
	for name, c := range map[string]struct {
		method, url string
		status      int
	}{
		"read": {"GET", signed("read", "", ""), 200}, "read as user": {"GET", signed("read", "user", future), 200}, "expired": {"GET", signed("read", "", past), 401},
		"write signature for reading": {"GET", signed("write", "", ""), 401}, "none": {"GET", filesURL("hello.txt"), 401}, "write": {"POST", signed("write", "", ""), 200},
		"another path": {"GET", strings.Replace(signed("read", "", ""), "hello.txt", "other.txt", 1), 401},
	} {
		header := map[string]string{"X-Access-Token": ""}
		var body io.Reader
		if c.method == "POST" {
			header["Content-Type"], body = "application/octet-stream", strings.NewReader("signed")
		}
		if status, answer := s.fetch(c.method, c.url, body, header); status != c.status {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if got := identity.Sign("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", ""); got != "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E" {
		t.Errorf("the published example gives %s", got)
	}
	if status, _ := s.fetch("GET", filesURL("hello.txt"), nil, map[string]string{"X-Access-Token": "wrong"}); status != 401 {
		t.Errorf("wrong token: %d", status)
	}
}

func TestOversizeRequestsAreRefused(t *testing.T) {
	s := newSandbox(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: x\r\nX-Big: %s\r\n\r\n", strings.Repeat("x", 200_000))
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "431") {
		t.Errorf("header: %q %v", line, err)
	}
	big := strings.NewReader(`{"path":"` + strings.Repeat("x", 17<<20) + `"}`)
	if status, answer := s.fetch("POST", "/filesystem.Filesystem/Stat", big, map[string]string{"Content-Type": "application/json"}); status != 429 {
		t.Errorf("unary: %d %.100s", status, answer)
	}
	claimed := bytes.NewReader([]byte{0, 0xff, 0xff, 0xff, 0xff, '{', '}'})
	if _, answer := s.fetch("POST", "/process.Process/Start", claimed, map[string]string{"Content-Type": "application/connect+json"}); !strings.Contains(answer, "resource_exhausted") {
		t.Errorf("envelope: %.200q", answer)
	}
	if status, _ := s.fetch("POST", "/process.Process/List", strings.NewReader("{}"), map[string]string{"Content-Type": "text/plain"}); status != 415 {
		t.Errorf("type: %d", status)
	}
	if status, _ := s.fetch("POST", "/process.Process/List", strings.NewReader("{"), map[string]string{"Content-Type": "application/json"}); status != 400 {
		t.Errorf("JSON: %d", status)
	}
	if status, _ := s.fetch("GET", "/no/such/route", nil, nil); status != 404 {
		t.Errorf("route: %d", status)
	}
}
