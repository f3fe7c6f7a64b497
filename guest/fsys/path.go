// Package fsys is E2B's filesystem service: paths, entries, folders and watching.
//
// The agent acts as root, as E2B's does: a user may read and write any path of the sandbox through it, and what is
// made new belongs to that user. The sandbox itself is the boundary, not its inner accounts.
package fsys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"torpor/guest/account"
	"torpor/guest/wire"
)

// PathBytesMax is Linux's PATH_MAX less its final NUL.
const PathBytesMax = 4095

// Paths resolves what clients write to absolute paths.
type Paths struct {
	Accounts *account.Book
	// DefaultUser and DefaultWorkdir are asked at each use, since each incarnation may change them.
	DefaultUser    func() string
	DefaultWorkdir func() string
}

// User finds the account a request names; empty is the default. Errors: unauthenticated.
func (p *Paths) User(name string) (*account.User, error) {
	if name == "" {
		name = p.DefaultUser()
	}
	user, err := p.Accounts.Lookup(name)
	if err != nil {
		return nil, wire.Errorf(wire.Unauthenticated, "%v", err)
	}
	return user, nil
}

// Resolve makes path absolute: relative ones start in the user's home, as ~ does, and an empty one is the default work folder
// or else the home (E2B's rules). Errors: invalid_argument for a path no kernel call could take.
func (p *Paths) Resolve(path string, user *account.User) (string, error) {
	if strings.ContainsRune(path, 0) {
		return "", wire.Errorf(wire.InvalidArgument, "the path %q holds a NUL byte", path)
	}
	switch {
	case path == "":
		if path = p.DefaultWorkdir(); path == "" {
			path = user.Home
		}
	case path == "~" || strings.HasPrefix(path, "~/"):
		path = user.Home + path[1:]
	case strings.HasPrefix(path, "~"):
		return "", wire.Errorf(wire.InvalidArgument, "the path %q names another user's home; write it out", path)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(user.Home, path)
	}
	path = filepath.Clean(path)
	if len(path) > PathBytesMax {
		return "", wire.Errorf(wire.InvalidArgument, "the path is %d bytes long; at most %d are possible", len(path), PathBytesMax)
	}
	for _, name := range strings.Split(path, "/") {
		if len(name) > 255 {
			return "", wire.Errorf(wire.InvalidArgument, "the path has a name of %d bytes; at most 255 are possible", len(name))
		}
	}
	return path, nil
}

// MakeParents makes the missing folders above path, owned by user.
func MakeParents(path string, user *account.User) error { return makeAll(filepath.Dir(path), user) }

func makeAll(dir string, user *account.User) error {
	var missing []string
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err == nil {
			if !info.IsDir() {
				return wire.Errorf(wire.InvalidArgument, "path '%s' is a file, not a directory", at)
			}
			break
		}
		if !errors.Is(err, os.ErrNotExist) {
			return PathError(err, at)
		}
		missing = append(missing, at)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := os.Mkdir(missing[i], 0o755); err != nil {
			if errors.Is(err, os.ErrExist) {
				if info, statErr := os.Stat(missing[i]); statErr == nil && info.IsDir() {
					continue // somebody else made it meanwhile
				}
			}
			return PathError(err, missing[i])
		}
		_ = os.Chmod(missing[i], 0o755)
		if err := os.Lchown(missing[i], int(user.UID), int(user.GID)); err != nil {
			return PathError(err, missing[i])
		}
	}
	return nil
}

// PathError gives a failed call on path its protocol code.
func PathError(err error, path string) error {
	var known *wire.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, os.ErrNotExist):
		return wire.Errorf(wire.NotFound, "path '%s' does not exist", path)
	case errors.Is(err, syscall.ELOOP):
		return wire.Errorf(wire.InvalidArgument, "path '%s' is a loop of symbolic links", path)
	case errors.Is(err, syscall.ENOTDIR):
		return wire.Errorf(wire.InvalidArgument, "path '%s' leads through a file, not a directory", path)
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EXDEV):
		return wire.Errorf(wire.InvalidArgument, "path '%s' cannot be used: %v", path, err)
	case errors.Is(err, os.ErrExist), errors.Is(err, syscall.ENOTEMPTY):
		return wire.Errorf(wire.AlreadyExists, "path '%s' already exists", path)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return wire.Errorf(wire.PermissionDenied, "path '%s': %v", path, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return wire.Errorf(wire.ResourceExhausted, "path '%s': the sandbox's disk is full", path)
	case errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EISDIR):
		return wire.Errorf(wire.FailedPrecondition, "path '%s': %v", path, err)
	}
	return wire.Errorf(wire.Internal, "path '%s': %v", path, err)
}
