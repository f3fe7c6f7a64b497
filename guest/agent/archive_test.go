package agent

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

type tarEntry struct {
	name, content, link string
	kind                byte
	mode                int64
	uid                 int
}

func tarOf(t *testing.T, entries ...tarEntry) *bytes.Buffer {
	t.Helper()
	var body bytes.Buffer
	w := tar.NewWriter(&body)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Mode: e.mode, Size: int64(len(e.content)), Uid: e.uid, Gid: e.uid, ModTime: time.Unix(1e9, 0), Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	return &body
}

func TestArchiveRoundTrip(t *testing.T) {
	s := newSandbox(t)
	long := strings.Repeat("long-name-", 20) + "/" + strings.Repeat("ü", 60)
	body := tarOf(t,
		tarEntry{name: "./b/", kind: tar.TypeDir, mode: 0o500},
		tarEntry{name: "b/file", content: "b", mode: 0o751, uid: 77},
		tarEntry{name: "a", content: "first"}, tarEntry{name: "a", content: strings.Repeat("x", 100_000)},
		tarEntry{name: "link", kind: tar.TypeSymlink, link: "/etc/passwd"},
		tarEntry{name: "hard", kind: tar.TypeLink, link: "b/file"},
		tarEntry{name: long, content: "long"}, tarEntry{name: "empty"}, tarEntry{name: "pipe", kind: tar.TypeFifo},
	)
	if status, answer := s.fetch("PUT", "/torpor/archive?path=into/here", body, nil); status != 200 || answer != `{"entries":9,"bytes":100010}` {
		t.Fatalf("%d %s", status, answer)
	}
	dir := filepath.Join(s.home, "into/here")
	info, err := os.Lstat(filepath.Join(dir, "b/file"))
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm() != 0o751 || st.Uid != 1000 || st.Nlink != 2 || info.ModTime().Unix() != 1e9 {
		t.Errorf("b/file: %v uid %d links %d %v", info.Mode(), st.Uid, st.Nlink, info.ModTime())
	}
	if info, err := os.Stat(filepath.Join(dir, "b")); err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("b: %v %v", info, err)
	}
	response := s.do("GET", "/torpor/archive?path=into/here", nil, nil)
	defer response.Body.Close()
	var names []string
	r := tar.NewReader(response.Body)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		names = append(names, fmt.Sprintf("%c %s %s %d", h.Typeflag, h.Name, h.Linkname, len(content)))
		if h.Uname != "user" || h.Uid != 1000 {
			t.Errorf("%s: owner %s %d", h.Name, h.Uname, h.Uid)
		}
	}
	first := strings.Split(long, "/")
	want := []string{"0 a  100000", "5 b/  0", "0 b/file  1", "0 empty  0", "1 hard b/file 0", "2 link /etc/passwd 0", "5 " + first[0] + "/  0", "0 " + long + "  4", "6 pipe  0"}
	if strings.Join(names, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(names, "\n"), strings.Join(want, "\n"))
	}
	if status, _ := s.fetch("PUT", "/torpor/archive?path="+s.root+"/byroot&username=root", tarOf(t, tarEntry{name: "f", content: "x", uid: 77, mode: 0o4755}), nil); status != 200 {
		t.Error(status)
	}
	if info, err := os.Lstat(s.root + "/byroot/f"); err != nil || info.Sys().(*syscall.Stat_t).Uid != 77 || info.Mode()&os.ModeSetuid == 0 {
		t.Errorf("by root: %v %v", info, err)
	}
}

func TestArchiveCannotEscape(t *testing.T) {
	s := newSandbox(t)
	outside := filepath.Join(s.root, "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	s.put("outside/victim", "untouched")
	cases := map[string][]tarEntry{
		"dots":                {{name: "../../outside/victim", content: "x"}},
		"dots inside":         {{name: "a/../../outside/victim", content: "x"}},
		"absolute":            {{name: filepath.Join(outside, "victim"), content: "x"}},
		"link then through":   {{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "l/victim", content: "x"}},
		"link as folder":      {{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "l/", kind: tar.TypeDir, mode: 0o700}},
		"hard link outside":   {{name: "h", kind: tar.TypeLink, link: "../outside/victim"}, {name: "h", content: "x"}},
		"hard link by link":   {{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "h", kind: tar.TypeLink, link: "l/victim"}},
		"device":              {{name: "d", kind: tar.TypeChar}},
		"too long":            {{name: strings.Repeat("x", 300), content: "x"}},
		"file becomes folder": {{name: "f", content: "x"}, {name: "f/g", content: "x"}},
	}
	for name, entries := range cases {
		status, answer := s.fetch("PUT", "/torpor/archive?path="+strings.ReplaceAll(name, " ", "-"), tarOf(t, entries...), nil)
		if status != 400 || !strings.Contains(answer, `"written":{"entries":`) {
			t.Errorf("%s: %d %s", name, status, answer)
		}
		if left := s.leftovers(filepath.Join(s.home, strings.ReplaceAll(name, " ", "-"))); len(left) > 0 {
			t.Errorf("%s left %v", name, left)
		}
	}
	if status, _ := s.fetch("PUT", "/torpor/archive?path=replaced", tarOf(t, tarEntry{name: "l", kind: tar.TypeSymlink, link: outside + "/victim"}, tarEntry{name: "l", content: "mine"}), nil); status != 200 || s.get("home/user/replaced/l") != "mine" {
		t.Errorf("a link is replaced, not followed: %d", status)
	}
	if got := s.get("outside/victim"); got != "untouched" {
		t.Errorf("victim: %q", got)
	}
	if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("outside: %v %v", info.Mode(), err)
	}
	if status, answer := s.fetch("PUT", "/torpor/archive?path=cut", bytes.NewReader(tarOf(t, tarEntry{name: "a", content: "1"}, tarEntry{name: "b", content: strings.Repeat("x", 5000)}).Bytes()[:2000]), nil); status != 400 || !strings.Contains(answer, `"entries":1`) {
		t.Errorf("cut off: %d %s", status, answer)
	}
	if status, _ := s.fetch("GET", "/torpor/archive?path=missing", nil, nil); status != 404 {
		t.Errorf("missing: %d", status)
	}
	if status, _ := s.fetch("GET", "/torpor/archive", nil, nil); status != 400 {
		t.Errorf("no path: %d", status)
	}
}
