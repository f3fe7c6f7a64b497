package changes

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// packed is a folder with some of everything, as a stream.
func packed(t *testing.T) (root string, stream []byte) {
	t.Helper()
	root = t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write("a/b/deep", "deep")
	write("strange\n\xff name", "x")
	write("holes", strings.Repeat("\x00", 10_000)+"data"+strings.Repeat("\x00", 10_000))
	for _, err := range []error{
		os.Symlink("a/b", filepath.Join(root, "link")), os.Link(filepath.Join(root, "a/b/deep"), filepath.Join(root, "twice")),
		syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600), os.Mkdir(filepath.Join(root, "own"), 0o700),
		os.Chtimes(filepath.Join(root, "a/b/deep"), time.Unix(1000, 1), time.Unix(2000, 2)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write("own/content", "the platform's")
	var out bytes.Buffer
	if _, err := Pack(context.Background(), &out, Root{Path: root, Platform: []string{"/own"}}, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	return root, out.Bytes()
}

func TestARootBecomesWhatWasPacked(t *testing.T) {
	from, stream := packed(t)
	to := t.TempDir()
	for _, name := range []string{"a/b/deep/was/a/folder", "link/was/a/folder", "gone/with/all", "own/kept"} {
		if err := os.MkdirAll(filepath.Join(to, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(to, "twice")); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(bytes.NewReader(stream), Root{Path: to}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/b/deep", "strange\n\xff name", "holes", "twice", "link", "pipe"} {
		var was, is syscall.Stat_t
		if err := syscall.Lstat(filepath.Join(from, name), &was); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Lstat(filepath.Join(to, name), &is); err != nil {
			t.Fatal(err)
		}
		if was.Mode != is.Mode || was.Size != is.Size || was.Mtim != is.Mtim || was.Nlink != is.Nlink {
			t.Errorf("%q is %+v and was %+v", name, is, was)
		}
		if was.Mode&syscall.S_IFMT == syscall.S_IFREG {
			before, _ := os.ReadFile(filepath.Join(from, name))
			after, _ := os.ReadFile(filepath.Join(to, name))
			if !bytes.Equal(before, after) {
				t.Errorf("%q holds other bytes", name)
			}
		}
	}
	if _, err := os.Lstat(filepath.Join(to, "gone")); !os.IsNotExist(err) {
		t.Errorf("what was not there is: %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(to, "own")); len(entries) != 1 || entries[0].Name() != "kept" {
		t.Errorf("the platform's own folder holds %v", entries)
	}
}

func TestAStreamThatWasCutOffIsNoWholeOne(t *testing.T) {
	_, stream := packed(t)
	for size := 0; size < len(stream); size += 7 {
		if _, err := Unpack(bytes.NewReader(stream[:size]), Root{Path: t.TempDir()}); err == nil {
			t.Fatalf("the first %d of %d bytes were taken for a whole stream", size, len(stream))
		}
	}
}

func TestNoNameLeadsOutOfItsFolder(t *testing.T) {
	for _, name := range []string{"..", ".", "", "a/b", "/etc/passwd", "nul\x00"} {
		var out bytes.Buffer
		w := newWriter(&out)
		for _, r := range []*record{{kind: folder}, {kind: link, name: name, target: "x"}} {
			if err := w.put(r); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.out.Flush()
		if _, err := Unpack(&out, Root{Path: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no name") {
			t.Errorf("%q was taken: %v", name, err)
		}
	}
}

func TestPackingEndsWithItsContext(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "huge"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(root, "huge"), 1<<42); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	if _, err := Pack(ctx, &out, Root{Path: root}, time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), "/huge") {
		t.Errorf("packing a hole without end gave %v", err)
	}
}
