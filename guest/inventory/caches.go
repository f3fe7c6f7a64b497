package inventory

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Cache is a folder whose content can be made again, at a price.
type Cache struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
}

// Browser lists the browser profiles found.
type Browser struct {
	Profiles []Profile `json:"profiles"`
}

// Profile is one of them: cookies, logins, local storage.
type Profile struct {
	Path      string `json:"path"`
	Browser   string `json:"browser"`
	SizeBytes int64  `json:"size_bytes"`
}

var cacheFolders = []string{".cache/*", ".npm/_cacache", ".cargo/registry", ".m2/repository", ".gradle/caches", "go/pkg/mod", ".ccache", ".local/share/pnpm", ".yarn/cache"}

func caches(ctx context.Context, root string, homes []string) []Cache {
	found := []Cache{}
	patterns := []string{filepath.Join(base(root), "var/cache/apt/archives"), filepath.Join(base(root), "workspace/*/node_modules/.cache")}
	for _, home := range homes {
		for _, folder := range cacheFolders {
			patterns = append(patterns, filepath.Join(home, folder))
		}
	}
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if size := folderSize(ctx, path); size > 0 && len(found) < listMax {
				found = append(found, Cache{Path: inside(root, path), SizeBytes: size})
			}
		}
	}
	return found
}

// Where browsers keep profiles below a home, and whose they are.
var profileFolders = map[string]string{
	".config/chromium": "chromium", ".config/google-chrome": "chrome", ".config/microsoft-edge": "edge",
	".mozilla/firefox/*.default*": "firefox", "snap/firefox/common/.mozilla/firefox/*.default*": "firefox",
}

func browsers(ctx context.Context, root string, homes []string) Browser {
	found := Browser{Profiles: []Profile{}}
	add := func(path, browser string) {
		name := inside(root, path)
		for _, known := range found.Profiles {
			if known.Path == name {
				return
			}
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			found.Profiles = append(found.Profiles, Profile{Path: name, Browser: browser, SizeBytes: folderSize(ctx, path)})
		}
	}
	for _, home := range homes {
		for pattern, browser := range profileFolders {
			paths, _ := filepath.Glob(filepath.Join(home, pattern))
			for _, path := range paths {
				add(path, browser)
			}
		}
	}
	// A browser that runs says where its profile is.
	for _, p := range processes(root) {
		for _, arg := range p.args {
			if dir, ok := strings.CutPrefix(arg, "--user-data-dir="); ok && filepath.IsAbs(dir) {
				add(filepath.Join(root, dir), strings.TrimSuffix(filepath.Base(p.args[0]), "-browser"))
			}
		}
	}
	return found
}

func folderSize(ctx context.Context, folder string) int64 {
	var size int64
	seen := 0
	_ = filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if seen++; seen > entriesMax || seen%256 == 0 && ctx.Err() != nil {
			return fs.SkipAll
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}

func inside(root, path string) string {
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
}
