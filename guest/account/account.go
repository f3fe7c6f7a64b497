// Package account looks users up in the sandbox's /etc/passwd and /etc/group.
// It reads the files itself: the agent is linked without libc, and images need not have one.
package account

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// User is one line of /etc/passwd with the groups it belongs to.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary groups, GID among them
	Home   string
	Shell  string
}

// NotFoundError says that no user of that name or number exists.
type NotFoundError struct{ Name string }

// Error gives the words E2B's clients expect.
func (e *NotFoundError) Error() string { return fmt.Sprintf("invalid username: '%s'", e.Name) }

// Book answers look-ups and rereads the files when they change. The zero value is not usable; see [Open].
type Book struct {
	passwdPath, groupPath string

	mu         sync.Mutex
	stamp      [4]int64
	byName     map[string]*User
	userNames  map[uint32]string
	groupNames map[uint32]string
}

// Open makes a Book over the given files, normally /etc/passwd and /etc/group. Files are read on first use.
func Open(passwdPath, groupPath string) *Book {
	return &Book{passwdPath: passwdPath, groupPath: groupPath}
}

// Lookup finds a user by name, or by decimal uid. Root is known even where there is no passwd file.
// Errors: [*NotFoundError].
func (b *Book) Lookup(name string) (*User, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	if u := b.byName[name]; u != nil {
		return u, nil
	}
	if uid, err := strconv.ParseUint(name, 10, 32); err == nil {
		if u := b.byName[b.userNames[uint32(uid)]]; u != nil {
			return u, nil
		}
	}
	if name == "root" {
		return &User{Name: "root", Groups: []uint32{0}, Home: "/root", Shell: "/bin/sh"}, nil
	}
	return nil, &NotFoundError{Name: name}
}

// UserName gives the name of a uid, or its decimal form when it has none.
func (b *Book) UserName(uid uint32) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	if n, ok := b.userNames[uid]; ok {
		return n
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// GroupName gives the name of a gid, or its decimal form when it has none.
func (b *Book) GroupName(gid uint32) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	if n, ok := b.groupNames[gid]; ok {
		return n
	}
	return strconv.FormatUint(uint64(gid), 10)
}

// InGroup says whether u belongs to the group of that name.
func (b *Book) InGroup(u *User, group string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	for _, gid := range u.Groups {
		if b.groupNames[gid] == group {
			return true
		}
	}
	return false
}

func (b *Book) refresh() {
	var stamp [4]int64
	var st syscall.Stat_t
	if syscall.Stat(b.passwdPath, &st) == nil {
		stamp[0], stamp[1] = st.Mtim.Nano(), int64(st.Ino)
	}
	if syscall.Stat(b.groupPath, &st) == nil {
		stamp[2], stamp[3] = st.Mtim.Nano(), int64(st.Ino)
	}
	if b.byName != nil && stamp == b.stamp {
		return
	}
	b.stamp = stamp
	b.byName, b.userNames, b.groupNames = map[string]*User{}, map[uint32]string{}, map[uint32]string{}
	eachLine(b.passwdPath, func(f []string) {
		if len(f) < 7 || b.byName[f[0]] != nil {
			return
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			return
		}
		b.byName[f[0]] = &User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Groups: []uint32{uint32(gid)}, Home: f[5], Shell: f[6]}
		if _, taken := b.userNames[uint32(uid)]; !taken {
			b.userNames[uint32(uid)] = f[0]
		}
	})
	eachLine(b.groupPath, func(f []string) {
		if len(f) < 4 {
			return
		}
		id, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			return
		}
		gid := uint32(id)
		if _, taken := b.groupNames[gid]; !taken {
			b.groupNames[gid] = f[0]
		}
		for _, member := range strings.Split(f[3], ",") {
			if u := b.byName[member]; u != nil && u.GID != gid {
				u.Groups = append(u.Groups, gid)
			}
		}
	})
}

func eachLine(path string, visit func([]string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 0, 4096), 1<<20)
	for lines.Scan() {
		if l := lines.Text(); l != "" && l[0] != '#' {
			visit(strings.Split(l, ":"))
		}
	}
}
