package inventory

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

// Packages are those added since the template, by who installed them.
type Packages struct {
	Pip []Package `json:"pip"`
	Npm []Package `json:"npm"`
	Apt []Package `json:"apt"`
}

// Package is one of them.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

func addedPackages(root string, homes []string, since time.Time) Packages {
	at := base(root)
	python := []string{filepath.Join(at, "usr/lib/python3/dist-packages"), filepath.Join(at, "usr/local/lib/python3*/dist-packages"),
		filepath.Join(at, "usr/local/lib/python3*/site-packages"), filepath.Join(at, "workspace/*/lib/python3*/site-packages"),
		filepath.Join(at, "workspace/*/*/lib/python3*/site-packages")}
	node := []string{filepath.Join(at, "usr/local/lib/node_modules"), filepath.Join(at, "usr/lib/node_modules"),
		filepath.Join(at, "workspace/node_modules"), filepath.Join(at, "workspace/*/node_modules")}
	for _, home := range homes {
		python = append(python, filepath.Join(home, ".local/lib/python3*/site-packages"), filepath.Join(home, "*/lib/python3*/site-packages"))
		node = append(node, filepath.Join(home, ".npm-global/lib/node_modules"), filepath.Join(home, "node_modules"), filepath.Join(home, "*/node_modules"))
	}
	return Packages{Pip: pipPackages(python, since), Npm: npmPackages(node, since), Apt: aptPackages(at, since)}
}

// pipPackages reads the names of the metadata folders that pip leaves beside what it installs.
func pipPackages(folders []string, since time.Time) []Package {
	var found []Package
	for _, folder := range folders {
		infos, _ := filepath.Glob(filepath.Join(folder, "*.dist-info"))
		for _, info := range infos {
			if !changedSince(info, since) {
				continue
			}
			name, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(info), ".dist-info"), "-")
			found = append(found, Package{Name: name, Version: version})
		}
	}
	return sorted(found)
}

func npmPackages(folders []string, since time.Time) []Package {
	var found []Package
	for _, folder := range folders {
		manifests, _ := filepath.Glob(filepath.Join(folder, "*/package.json"))
		scoped, _ := filepath.Glob(filepath.Join(folder, "@*/*/package.json"))
		for _, manifest := range append(manifests, scoped...) {
			if !changedSince(manifest, since) {
				continue
			}
			var p Package
			text, err := os.ReadFile(manifest)
			if err == nil && json.Unmarshal(text, &p) == nil && p.Name != "" {
				found = append(found, p)
			}
		}
	}
	return sorted(found)
}

// aptPackages are those whose file list was written since; their versions stand in dpkg's status.
func aptPackages(at string, since time.Time) []Package {
	lists, _ := filepath.Glob(filepath.Join(at, "var/lib/dpkg/info/*.list"))
	added := map[string]bool{}
	for _, list := range lists {
		if changedSince(list, since) {
			name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(list), ".list"), ":")
			added[name] = true
		}
	}
	if len(added) == 0 {
		return []Package{}
	}
	status, err := os.Open(filepath.Join(at, "var/lib/dpkg/status"))
	if err != nil {
		return []Package{}
	}
	defer status.Close()
	var found []Package
	name := ""
	lines := bufio.NewScanner(status)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "Package: "); ok {
			name = value
		} else if value, ok := strings.CutPrefix(lines.Text(), "Version: "); ok && added[name] {
			found = append(found, Package{Name: name, Version: value})
		}
	}
	return sorted(found)
}

func sorted(packages []Package) []Package {
	sort.Slice(packages, func(i, j int) bool { return packages[i].Name < packages[j].Name })
	packages = slices.Compact(packages) // two patterns may have led to one folder
	if len(packages) > listMax {
		packages = packages[:listMax]
	}
	if packages == nil {
		return []Package{}
	}
	return packages
}
