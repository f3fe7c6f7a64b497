package fsys

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRemovingATreeRemovesLinksAndNotWhatTheyLeadTo(t *testing.T) {
	root := t.TempDir()
	kept := filepath.Join(root, "kept")
	tree := filepath.Join(root, "tree")
	for _, dir := range []string{kept, filepath.Join(tree, "deep", "deeper")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(kept, "file"), filepath.Join(tree, "deep", "file")} {
		if err := os.WriteFile(file, nil, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{filepath.Join(tree, "out"), filepath.Join(tree, "deep", "deeper", "out")} {
		if err := os.Symlink(kept, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeTree(tree); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(tree); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Errorf("what a link led to is gone: %v", err)
	}
	if err := removeTree(tree); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

func TestTheKernelsOwnFileSystemsAreNotRemoved(t *testing.T) {
	for _, path := range []string{"/", "/proc", "/proc/1", "/proc/self/cwd", "/sys", "/sys/kernel"} {
		if err := checkRemovable(path); err == nil {
			t.Errorf("%s may be removed", path)
		}
	}
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/proc", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, link, filepath.Join(dir, "missing")} {
		if err := checkRemovable(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
